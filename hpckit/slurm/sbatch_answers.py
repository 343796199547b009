"""Reads what sbatch answers: the number of a job, or why it refuses one and what can be done.

By the messages of sbatch 22.05 to 26.05. Where a limit of accounting is exceeded, its name comes on
a line of its own before the text of the error code (slurm_errno.c).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SUBMITTED = re.compile(r"^Submitted batch job (\d+)", re.MULTILINE)


def submitted_job(text: str) -> str | None:
    """Returns the number of the job by the output of sbatch, which may have notes of a plug-in or
    of a wrapper that also speak of jobs; None: it names none."""
    found = _SUBMITTED.findall(text)
    return found[-1] if found else None


@dataclass(frozen=True)
class SubmitRefusal:
    """The meaning of a refusal, and advice."""

    meaning: str
    advice: str


_MOST_SUBMITTED = SubmitRefusal(
    "you have as many jobs in the queue as your account or quality of service allows, and the one "
    "that runs counts",
    "launch.continuation=requeue, which needs no second job in the queue, or wait until other jobs "
    "of yours have ended",
)

# The first pattern that is found counts: what names a limit comes before the general text.
_REFUSALS = (
    (r"\w*Max\w*Submit\w*|\w*GrpSubmit\w*", _MOST_SUBMITTED),
    (r"job submit limit", _MOST_SUBMITTED),
    (
        r"\b(?:QOS|Assoc)(?:Grp|Max|Min)\w+",
        SubmitRefusal(
            "it asks for more, or less, than your account or quality of service allows",
            "change launch.nodes, launch.nproc_per_node, cluster.slurm.time_limit or qos",
        ),
    ),
    (
        r"Invalid account|account/partition combination",
        SubmitRefusal(
            "Slurm does not accept the account, or not in this partition",
            "set cluster.slurm.account, or another cluster.slurm.partition; sacctmgr show "
            "associations user=$USER lists your accounts",
        ),
    ),
    (
        r"[Ii]nvalid qos",
        SubmitRefusal(
            "there is no such quality of service, or you may not use it", "set cluster.slurm.qos"
        ),
    ),
    (
        r"[Pp]artition not available",
        SubmitRefusal(
            "its partition does not start jobs at present",
            "wait until it does, or set cluster.slurm.partition",
        ),
    ),
    (
        r"[Ii]nvalid partition|not permitted to use this partition|No partition specified",
        SubmitRefusal(
            "there is no such partition, or you may not use it", "set cluster.slurm.partition"
        ),
    ),
    (
        r"[Tt]ime limit (?:is )?invalid|Requested time limit|time limit specification",
        SubmitRefusal(
            "its time limit is missing, or longer than the partition allows",
            "set cluster.slurm.time_limit",
        ),
    ),
    (
        r"option unsupported by configured SelectType|only supported with .*cons_tres",
        SubmitRefusal(
            "GPUs are requested in a way that this cluster's SelectType does not have",
            "set cluster.slurm.gpus=gres",
        ),
    ),
    (
        r"[Jj]ob array",
        SubmitRefusal(
            "the sweep has more runs than a job array of this cluster may have (MaxArraySize)",
            "start the sweep in parts; scontrol show config shows MaxArraySize, which is one more "
            "than the most runs",
        ),
    ),
    (
        r"generic resource \(gres\)|Invalid GRES",
        SubmitRefusal(
            "the cluster has no such GPUs", "set cluster.slurm.gpu_type and launch.nproc_per_node"
        ),
    ),
    (
        r"Invalid feature|feature specification",
        SubmitRefusal("no node has these features", "set cluster.slurm.constraint"),
    ),
    (
        r"Memory (?:required|specification)",
        SubmitRefusal("no node has so much memory", "set cluster.slurm.memory"),
    ),
    (
        r"not supported on this system|doesn't allow an argument|Invalid --requeue",
        SubmitRefusal(
            "Slurm does not support what the job asks for, such as --requeue=expedite before 25.11 "
            "or without SlurmctldParameters=enable_expedited_requeue",
            "set launch.continuation to auto or chain, or leave out cluster.slurm.options",
        ),
    ),
    (
        r"license",
        SubmitRefusal(
            "the cluster has no such licenses, or fewer than it asks for",
            "change licenses in cluster.slurm.options; scontrol show licenses lists them",
        ),
    ),
    (
        r"wckey",
        SubmitRefusal("you may not use this wckey", "change wckey in cluster.slurm.options"),
    ),
    (
        r"[Tt]opology",
        SubmitRefusal(
            "the network topology does not allow the placement that it asks for",
            "change switches, segment or contiguous in cluster.slurm.options",
        ),
    ),
    (
        r"Job dependency problem",
        SubmitRefusal(
            "it waits for a job that is unknown, or that can never end as it has to",
            "change dependency in cluster.slurm.options; squeue --me lists your jobs",
        ),
    ),
    (
        r"Reach max job count|presently disabled",
        SubmitRefusal(
            "the cluster accepts no jobs at present, as its queue is full (MaxJobCount) or an "
            "administrator has disabled it",
            "try again later",
        ),
    ),
    (
        r"cli_filter|lua: |Unspecified error",
        SubmitRefusal(
            "a plug-in of this site refused it (job_submit, cli_filter); what it says stands above",
            "change what it names, or ask the administrators of the cluster",
        ),
    ),
    (
        r"[Mm]unge|authentication error|credential",
        SubmitRefusal(
            "Slurm does not recognize you on this machine: munge does not run here, or the clocks "
            "differ",
            "submit from a login node of the cluster, or ask its administrators",
        ),
    ),
    (
        r"Incompatible versions",
        SubmitRefusal(
            "the Slurm on this machine is too old or too new for the cluster",
            "submit from a login node of the cluster, whose Slurm is first on the path",
        ),
    ),
    (
        r"Required node not available|DOWN, DRAINED or reserved",
        SubmitRefusal(
            "nodes that it needs are down, drained or reserved",
            "wait, or request other nodes; sinfo --list-reasons shows more",
        ),
    ),
    (
        r"[Rr]eservation",
        SubmitRefusal(
            "the reservation does not exist, or you may not use it",
            "set cluster.slurm.reservation",
        ),
    ),
    (
        r"node configuration is not available|Node count specification|"
        r"More processors requested|CPU count",
        SubmitRefusal(
            "no nodes of the partition have all that it asks for",
            "set launch.nodes, launch.nproc_per_node, cluster.slurm.cpus_per_node, memory, "
            "gpu_type, constraint or partition; sinfo lists the nodes",
        ),
    ),
    (
        r"Socket timed out|[Uu]nable to contact|Connection refused|Zero Bytes|timed out|"
        r"temporarily unable|[Cc]ommunication",
        SubmitRefusal(
            "Slurm's controller did not answer", "try again; scontrol ping asks the controller"
        ),
    ),
    (
        r"Access/permission denied|Permission denied",
        SubmitRefusal("you may not submit this job", "ask the administrators of the cluster"),
    ),
)


def explain_refusal(message: str) -> SubmitRefusal | None:
    """Returns the explanation of what sbatch has printed, or None if it is not known."""
    found = (refusal for pattern, refusal in _REFUSALS if re.search(pattern, message))
    return next(found, None)
