"""Explains Slurm's reason codes of pending jobs, and what can be done about them.

After https://slurm.schedmd.com/job_reason_codes.html and squeue(1) of 22.05 to 25.05.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_WAIT = "nothing: it starts automatically"
_SMALLER = "ask for less: launch.nodes, launch.nproc_per_node, cluster.slurm.time_limit"
_LIMIT = "wait until your other jobs have ended, or ask for less"
_ADMIN = "ask the administrators of the cluster"
_ACCESS = "choose another cluster.slurm.partition, account or qos"


@dataclass(frozen=True)
class PendingReason:
    """The meaning of a reason code, and advice."""

    meaning: str
    advice: str


_EXACT = {
    "None": PendingReason("the scheduler has not looked at it yet", _WAIT),
    "Resources": PendingReason(
        "it is the next in line, and waits for nodes, CPUs, memory or GPUs that are in use", _WAIT
    ),
    "Priority": PendingReason(
        "jobs of a higher priority wait for the same nodes",
        "wait; a shorter cluster.slurm.time_limit or fewer nodes fit into gaps earlier",
    ),
    "Dependency": PendingReason("it waits for another job to end", _WAIT),
    "DependencyNeverSatisfied": PendingReason(
        "it waits for another job to end in a way that cannot happen any more",
        "hpckit cancel, then hpckit resume",
    ),
    "BeginTime": PendingReason("its earliest start time is in the future", _WAIT),
    "JobHeldUser": PendingReason("you hold it back", "scontrol release JOB"),
    "JobHeldAdmin": PendingReason("an administrator holds it back", _ADMIN),
    "ReqNodeNotAvail": PendingReason(
        "nodes that it needs are down, drained, reserved (for maintenance, often) or in use",
        "wait, or end before a reservation starts with a shorter cluster.slurm.time_limit; "
        "sinfo --list-reasons and scontrol show reservation show more",
    ),
    "NodeDown": PendingReason(
        "a node that it needs is down", "wait, or leave it out of the request"
    ),
    "Reservation": PendingReason("its reservation has not started", _WAIT),
    "ReservationDeleted": PendingReason(
        "its reservation is gone", "start it again without cluster.slurm.reservation"
    ),
    "PartitionTimeLimit": PendingReason(
        "its time limit is beyond the one of its partition",
        "a shorter cluster.slurm.time_limit, or another cluster.slurm.partition",
    ),
    "PartitionNodeLimit": PendingReason(
        "its partition does not give so many (or so few) nodes to a job, or they are down",
        "launch.nodes, or another cluster.slurm.partition",
    ),
    "PartitionDown": PendingReason("its partition is down", f"wait, or {_ACCESS}"),
    "PartitionInactive": PendingReason("its partition starts no jobs now", f"wait, or {_ACCESS}"),
    "PartitionConfig": PendingReason("it asks for what its partition never has", _SMALLER),
    "AccountNotAllowed": PendingReason("its account may not use its partition", _ACCESS),
    "QOSNotAllowed": PendingReason(
        "its quality of service may not be used in its partition", _ACCESS
    ),
    "InvalidAccount": PendingReason("its account is not valid", _ACCESS),
    "InvalidQOS": PendingReason("its quality of service is not valid", _ACCESS),
    "BadConstraints": PendingReason(
        "no node can ever have what it asks for",
        "cluster.slurm.constraint, memory, cpus_per_node, gpu_type, or launch.nproc_per_node",
    ),
    "Licenses": PendingReason("it waits for a license", _WAIT),
    "Cleaning": PendingReason("what it ran before is still being cleaned up", _WAIT),
    "Prolog": PendingReason("its nodes are being prepared", _WAIT),
    "JobHoldMaxRequeue": PendingReason("it was requeued as often as is allowed", "hpckit resume"),
    "JobLaunchFailure": PendingReason(
        "it could not be started: a file system or a node did not do its part",
        "look at slurmd's log with the administrators; then scontrol release JOB",
    ),
    "launch_failed_requeued_held": PendingReason(
        "a node could not start it, and it is held back since", "scontrol release JOB"
    ),
    "JobArrayTaskLimit": PendingReason("as many jobs of its array run as may at one time", _WAIT),
    "MaxMemPerLimit": PendingReason(
        "it asks for more memory than is allowed", "cluster.slurm.memory"
    ),
    "NonZeroExitCode": PendingReason("it ended with an error", "hpckit why"),
    "TimeLimit": PendingReason("it ran into its time limit", _WAIT),
    "SystemFailure": PendingReason("Slurm itself failed", _ADMIN),
    "InactiveLimit": PendingReason("it was silent for longer than the cluster allows", _ADMIN),
    "AccountingPolicy": PendingReason("a limit of your account is reached", _LIMIT),
    "QOSUsageThreshold": PendingReason("your use of the cluster has passed a threshold", _ACCESS),
    "FrontEndDown": PendingReason("the front end of its nodes is down", _ADMIN),
    "BurstBufferResources": PendingReason("it waits for room in the burst buffer", _WAIT),
    "BurstBufferStageIn": PendingReason("its data is on the way to the burst buffer", _WAIT),
    "OutOfMemory": PendingReason(
        "it used more memory than it had asked for", "cluster.slurm.memory"
    ),
    "FedJobLock": PendingReason("clusters of the federation agree on who runs it", _WAIT),
    "DeadLine": PendingReason("it could not end before its deadline", "start it again"),
}

# By the limit's place in Slurm's tree; the first group is what is limited, such as GRES or Node.
_PATTERNS = (
    (
        r"(?:Assoc|Association)Grp(\w+?)(?:Limit)?",
        PendingReason("all jobs of your account together have reached a limit ({what})", _LIMIT),
    ),
    (
        r"AssocMax(?:Submit)?Jobs?(\w*?)Limit",
        PendingReason("you have as many jobs as your account allows", _LIMIT),
    ),
    (
        r"AssocMax(\w+?)(?:Limit)?",
        PendingReason("it is beyond what your account allows one user or job ({what})", _SMALLER),
    ),
    (
        r"Association(\w+?)Limit",
        PendingReason("your account has reached a limit ({what})", _LIMIT),
    ),
    (
        r"QOSGrp(\w+?)(?:Limit)?",
        PendingReason("all jobs of its quality of service have reached a limit ({what})", _LIMIT),
    ),
    (
        r"QOSMaxJobs(\w*?)(?:Limit)?",
        PendingReason("you have as many jobs as its quality of service allows", _LIMIT),
    ),
    (
        r"(?:QOSMax|Max)(\w+?PerUser|\w+?PerAccount|\w+?PA|\w+?PU)(?:Limit)?",
        PendingReason(
            "you or your account use as much as the quality of service allows ({what})", _LIMIT
        ),
    ),
    (
        r"QOSMax(\w+?)(?:Limit)?",
        PendingReason("it asks for more than its quality of service allows ({what})", _SMALLER),
    ),
    (
        r"QOSMin(\w+?)(?:NotSatisfied|Limit)?",
        PendingReason(
            "it asks for less than its quality of service wants ({what})", "ask for more"
        ),
    ),
    (
        r"QOS(\w+?)Limit",
        PendingReason("its quality of service has reached a limit ({what})", _LIMIT),
    ),
)


def explain(code: str) -> PendingReason:
    """Returns the explanation of Slurm's reason; for an unknown code, one that says so."""
    name = re.split(r"[,\s(]", code.strip(), maxsplit=1)[0]
    if name in _EXACT:
        return _EXACT[name]
    for pattern, reason in _PATTERNS:
        if match := re.fullmatch(pattern, name):
            return PendingReason(reason.meaning.format(what=_spaced(match[1])), reason.advice)
    return PendingReason(
        f'Slurm says "{code}"', "see https://slurm.schedmd.com/job_reason_codes.html"
    )


def is_singleton(dependency: str) -> bool:
    """Returns whether the job waits for the other jobs of its run."""
    return "singleton" in dependency


def _spaced(name: str) -> str:
    """Splits words: "CpuPerUser" gives "CPU per user"."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+|[a-z]+|\d+", name)
    shown = {"Cpu": "CPU", "Gres": "GRES", "Mem": "memory", "Node": "node", "Jobs": "jobs"}
    return " ".join(shown.get(word, word if word.isupper() else word.lower()) for word in words)
