"""Whether a Slurm job has a successor job. Pure, from what an `Overview` has gathered."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.config.spec import RunSpec
from hpckit.report.progress import RunProgress
from hpckit.slurm.squeue import SlurmJob


def missing_successor_reason(
    spec: RunSpec | None, progress: RunProgress, jobs: Sequence[SlurmJob], is_under_way: bool
) -> str | None:
    """Return why no job is queued that would continue when the present one has to leave; None: one
    is, the job itself will be requeued, or the run has no job under way.

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
