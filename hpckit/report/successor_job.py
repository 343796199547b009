"""Whether a job of Slurm is followed by another one. Pure, from what an `Overview` has gathered."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.config.spec import RunSpec
from hpckit.report.progress import RunProgress
from hpckit.slurm.squeue import SlurmJob


def missing_successor_reason(
    spec: RunSpec | None, progress: RunProgress, jobs: Sequence[SlurmJob], is_under_way: bool
) -> str | None:
    """Why nothing is queued that would go on where the job under way has to leave; None: something
    is, the job itself is to be requeued, or the run is none that has a job under way.

    Args:
        jobs: of the run, by Slurm's queue; empty: Slurm does not answer.
    """
    if spec is None or spec.cluster.kind != "slurm" or not is_under_way or progress.job is None:
        return None
    if spec.launch.continuation == "none":
        return "launch.continuation=none"
    if progress.no_successor is not None:
        return progress.no_successor
    if spec.launch.continuation == "requeue" or any(job.is_waiting for job in jobs):
        return None
    if progress.successor is None:
        return "its supervisor has not said so yet"
    if jobs:
        return f"job {progress.successor}, which was to follow, is not in Slurm's queue any more"
    return None
