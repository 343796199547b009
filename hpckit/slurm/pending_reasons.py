"""Explains Slurm's reason codes of pending jobs, and what can be done about them.

After https://slurm.schedmd.com/job_reason_codes.html and squeue(1) of 22.05 to 25.05.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

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
    is_lasting: bool = False
    """Whether the job does not start before somebody changes something."""


_EXACT = {
    "None": PendingReason("the scheduler has not looked at it yet", _WAIT),
    "Resources": PendingReason(
        "it is next in the queue and waits for nodes, CPUs, memory or GPUs that are in use", _WAIT
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
    "JobHeldUser": PendingReason("its owner has put it on hold", "scontrol release JOB"),
    "JobHeldAdmin": PendingReason("an administrator has put it on hold", _ADMIN),
    "ReqNodeNotAvail": PendingReason(
        "nodes that it needs are down, drained, reserved (often for maintenance) or in use",
        "wait, or end before a reservation starts with a shorter cluster.slurm.time_limit; "
        "sinfo --list-reasons and scontrol show reservation show more",
    ),
    "NodeDown": PendingReason("a node that it needs is down", "wait, or do not request that node"),
    "Reservation": PendingReason("its reservation has not started", _WAIT),
    "ReservationDeleted": PendingReason(
        "its reservation no longer exists", "start it again without cluster.slurm.reservation"
    ),
    "PartitionTimeLimit": PendingReason(
        "its time limit is longer than its partition allows",
        "set a shorter cluster.slurm.time_limit, or use another cluster.slurm.partition",
    ),
    "PartitionNodeLimit": PendingReason(
        "its partition does not allow so many (or so few) nodes for a job, or they are down",
        "change launch.nodes, or use another cluster.slurm.partition",
    ),
    "PartitionDown": PendingReason("its partition is down", f"wait, or {_ACCESS}"),
    "PartitionInactive": PendingReason(
        "its partition does not start jobs at present", f"wait, or {_ACCESS}"
    ),
    "PartitionConfig": PendingReason(
        "it asks for resources that its partition never has", _SMALLER
    ),
    "AccountNotAllowed": PendingReason("its account may not use its partition", _ACCESS),
    "QOSNotAllowed": PendingReason("its partition does not allow its quality of service", _ACCESS),
    "InvalidAccount": PendingReason("its account is not valid", _ACCESS),
    "InvalidQOS": PendingReason("its quality of service is not valid", _ACCESS),
    "BadConstraints": PendingReason(
        "no node can ever satisfy its request",
        "change cluster.slurm.constraint, memory, cpus_per_node, gpu_type, or "
        "launch.nproc_per_node",
    ),
    "Licenses": PendingReason("it waits for a license", _WAIT),
    "Cleaning": PendingReason(
        "the processes of its previous start are still being cleaned up", _WAIT
    ),
    "Prolog": PendingReason("its nodes are being prepared", _WAIT),
    "JobHoldMaxRequeue": PendingReason("it was requeued as often as is allowed", "hpckit resume"),
    "JobLaunchFailure": PendingReason(
        "it could not be started: a file system or a node failed",
        "look at slurmd's log with the administrators; then scontrol release JOB",
    ),
    "launch_failed_requeued_held": PendingReason(
        "a node could not start it, and it is on hold since then", "scontrol release JOB"
    ),
    "JobArrayTaskLimit": PendingReason(
        "the maximum number of jobs of its array run already", _WAIT
    ),
    "MaxMemPerLimit": PendingReason(
        "it asks for more memory than is allowed", "cluster.slurm.memory"
    ),
    "NonZeroExitCode": PendingReason("it ended with an error", "hpckit why"),
    "TimeLimit": PendingReason("it ran into its time limit", _WAIT),
    "SystemFailure": PendingReason("Slurm itself failed", _ADMIN),
    "InactiveLimit": PendingReason("it was inactive for longer than the cluster allows", _ADMIN),
    "AccountingPolicy": PendingReason("a limit of your account is reached", _LIMIT),
    "QOSUsageThreshold": PendingReason("your use of the cluster has exceeded a threshold", _ACCESS),
    "FrontEndDown": PendingReason("the front end of its nodes is down", _ADMIN),
    "BurstBufferResources": PendingReason("it waits for space in the burst buffer", _WAIT),
    "BurstBufferStageIn": PendingReason("its data is on the way to the burst buffer", _WAIT),
    "OutOfMemory": PendingReason("it used more memory than it requested", "cluster.slurm.memory"),
    "FedJobLock": PendingReason(
        "the clusters of the federation are deciding which of them runs it", _WAIT
    ),
    "DeadLine": PendingReason("it could not end before its deadline", "start it again"),
}

_LASTING = (
    *("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "JobLaunchFailure"),
    *("launch_failed_requeued_held", "DependencyNeverSatisfied", "ReservationDeleted"),
    *("PartitionDown", "PartitionInactive", "PartitionConfig", "PartitionTimeLimit"),
    *("PartitionNodeLimit", "BadConstraints", "MaxMemPerLimit", "AccountNotAllowed"),
    *("QOSNotAllowed", "InvalidAccount", "InvalidQOS"),
)
_EXACT |= {name: replace(_EXACT[name], is_lasting=True) for name in _LASTING}

# Slurm shows some reasons as sentences in place of the code, by the calls of xstrdup() and
# xstrfmtcat() on state_desc in slurmctld of 22.05 to 26.11. scontrol puts _ for blanks.
_SENTENCES = {
    "job requeued in held state": PendingReason(
        "it ended with an error before its supervisor could say so, and Slurm queued it again, "
        "but on hold",
        "look at its batch log; then scontrol release JOB starts it again, and hpckit cancel "
        "removes it",
        is_lasting=True,
    ),
    "job requeued in special exit state": PendingReason(
        "it ended with a status for which the cluster queues a job again, but on hold",
        "look at its batch log; then scontrol release JOB",
        is_lasting=True,
    ),
    "user env retrieval failed requeued held": PendingReason(
        "your environment could not be read on a node (--get-user-env), and it is on hold",
        "leave out cluster.slurm.options.get-user-env; then scontrol release JOB",
        is_lasting=True,
    ),
    "not in group permitted to use this partition": PendingReason(
        "you may not use its partition", _ACCESS, is_lasting=True
    ),
    "is invalid": PendingReason(
        "its reservation is not valid for it",
        "change cluster.slurm.reservation",
        is_lasting=True,
    ),
    "Job is at or exceeds QOS": PendingReason("its quality of service has reached a limit", _LIMIT),
    "Job is at or exceeds association": PendingReason("your account has reached a limit", _LIMIT),
}
"""Parts of sentences that have no code, and what they mean."""
_EXACT |= _SENTENCES
_NAMES = {
    **{part: part for part in _SENTENCES},
    "launch failure limit exceeded requeued held": "JobLaunchFailure",
    "launch failed requeued held": "launch_failed_requeued_held",
    "Nodes required for job are DOWN": "ReqNodeNotAvail",
    "was deleted": "ReservationDeleted",
    "which this job was running under, has ended": "ReservationDeleted",
}
"""By a part of a sentence, the name of its reason in `_EXACT`."""

# By the limit's place in Slurm's tree; the first group is what is limited, such as GRES or Node.
_PATTERNS = (
    (
        r"(?:Assoc|Association)Grp(\w+?)(?:Limit)?",
        PendingReason("all jobs of your account together have reached a limit ({what})", _LIMIT),
    ),
    (
        r"AssocMax(?:Submit)?Jobs?(\w*?)Limit",
        PendingReason("you have the maximum number of jobs that your account allows", _LIMIT),
    ),
    (
        r"AssocMax(\w+?)(?:Limit)?",
        PendingReason("it exceeds what your account allows for one user or job ({what})", _SMALLER),
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
        PendingReason(
            "you have the maximum number of jobs that its quality of service allows", _LIMIT
        ),
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
            "it asks for less than its quality of service requires ({what})", "ask for more"
        ),
    ),
    (
        r"QOS(\w+?)Limit",
        PendingReason("its quality of service has reached a limit ({what})", _LIMIT),
    ),
)


_OF_NODES = ("BadConstraints", "ReqNodeNotAvail", "PartitionNodeLimit", "PartitionConfig")


def explain(code: str) -> PendingReason:
    """Returns the explanation of Slurm's reason; for an unknown code, one that says so.

    Args:
        code: the code, or a sentence in its place.
    """
    name = _name(code)
    if name in _EXACT:
        return _EXACT[name]
    for pattern, reason in _PATTERNS:
        if match := re.fullmatch(pattern, name):
            return PendingReason(reason.meaning.format(what=_spaced(match[1])), reason.advice)
    return PendingReason(
        f'Slurm says "{code}"', "see https://slurm.schedmd.com/job_reason_codes.html"
    )


def is_lasting(code: str) -> bool:
    """Returns whether a job with this reason does not start before somebody changes something."""
    return explain(code).is_lasting


def is_of_nodes(code: str) -> bool:
    """Returns whether the job waits because no nodes that it may have satisfy its request."""
    return _name(code) in _OF_NODES


def _name(code: str) -> str:
    """Returns the code without what Slurm adds to it; of a sentence, the name in `_NAMES`."""
    said = code.replace("_", " ")
    found = next((name for part, name in _NAMES.items() if part in said), None)
    return found or re.split(r"[,\s(]", code.strip(), maxsplit=1)[0]


def is_singleton(dependency: str) -> bool:
    """Returns whether the job waits for all other jobs of its name, as jobs of earlier releases
    do."""
    return "singleton" in dependency


def awaited_jobs(dependency: str) -> list[str]:
    """Returns the numbers of the jobs that a dependency such as
    "afterany:41(unfulfilled),afterok:7_2+5" names."""
    kinds = re.findall(r"after\w*:([\d_+*:]+)", dependency)
    return [number for kind in kinds for number in re.findall(r"\d+(?:_\d+)?", kind)]


def _spaced(name: str) -> str:
    """Splits words: "CpuPerUser" gives "CPU per user"."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+|[a-z]+|\d+", name)
    shown = {"Cpu": "CPU", "Gres": "GRES", "Mem": "memory", "Node": "node", "Jobs": "jobs"}
    return " ".join(shown.get(word, word if word.isupper() else word.lower()) for word in words)
