"""Looks at the pending successor job: whether it is still queued, and whether it can ever start."""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hpckit.slurm.cluster_config import CONFIG, parse_config
from hpckit.slurm.pending_reasons import explain
from hpckit.slurm.slurm_query import query
from hpckit.slurm.squeue import QueueError, SlurmJob, includes, queue

log = logging.getLogger(__name__)

WATCH_S = 150.0
"""Seconds between two looks, on average: shorter than Slurm remembers a cancelled job (MinJobAge)
on most sites."""
_MARGIN_S = 30.0
_NEVER = "DependencyNeverSatisfied"
_QUERY_S = 20.0


class SuccessorFate(StrEnum):
    """What has become of a successor job."""

    WAITS = "waits"
    """It is queued, and starts by itself."""
    BLOCKED = "blocked"
    """It is queued, and does not start before somebody changes something."""
    CANCELLED = "cancelled"
    """Somebody has cancelled it, or may have: another one is not wanted."""
    LOST = "lost"
    """It has left the queue though nobody has cancelled it: another one is needed."""
    NEVER = "never"
    """It waits for a job in a way that cannot happen any more: another one has to replace it."""


@dataclass(frozen=True)
class SuccessorState:
    """What has become of a successor job, and why."""

    fate: SuccessorFate
    reason: str = ""
    """What Slurm says and what it means, as text for people."""
    advice: str = ""
    """What to do about a job that is blocked."""


def judge_successor(
    number: str,
    jobs: Sequence[SlurmJob],
    unseen_s: float,
    remembered_s: Callable[[], float | None],
) -> SuccessorState:
    """Returns what has become of a successor job. Pure.

    Args:
        jobs: the user's jobs, with those that ended lately.
        unseen_s: seconds since it was in the queue for certain.
        remembered_s: returns for how many seconds Slurm remembers an ended job, None if that is
            unknown; it is called if the job is not among `jobs`.
    """
    job = next((job for job in jobs if includes(job.number, number)), None)
    if job is None:
        return _of_missing(number, unseen_s, remembered_s())
    reason = explain(job.reason)
    if job.reason == _NEVER and not job.is_active:
        return SuccessorState(SuccessorFate.NEVER, f"{job.reason}: {reason.meaning}")
    if job.state == "CANCELLED":
        what = f"job {number}, which was to continue the run, was cancelled"
        return SuccessorState(SuccessorFate.CANCELLED, what)
    if job.state == "REVOKED":  # another cluster of the federation has it
        return SuccessorState(SuccessorFate.WAITS)
    if job.is_over:
        what = f"job {number} has ended ({job.state}) before this job"
        return SuccessorState(SuccessorFate.LOST, what)
    if job.is_waiting and reason.is_lasting:
        advice = reason.advice.replace("JOB", number)
        return SuccessorState(SuccessorFate.BLOCKED, f"{job.reason}: {reason.meaning}", advice)
    return SuccessorState(SuccessorFate.WAITS)


def _of_missing(number: str, unseen_s: float, remembered_s: float | None) -> SuccessorState:
    what = f"job {number}, which was to continue the run, is no longer in Slurm's queue"
    if remembered_s is not None and remembered_s > unseen_s + _MARGIN_S:
        return SuccessorState(SuccessorFate.LOST, f"{what}, and was not cancelled")
    known = "an unknown time" if remembered_s is None else f"{remembered_s:.0f} s"
    return SuccessorState(
        SuccessorFate.CANCELLED,
        f"{what}; whether it was cancelled is unknown, as Slurm forgets ended jobs after {known}",
    )


def parse_memory_s(config: str) -> float | None:
    """Returns for how many seconds Slurm remembers an ended job, from the output of `CONFIG`; 0
    stands for no limit. Pure."""
    found = re.match(r"(\d+)", parse_config(config).get("MinJobAge", ""))
    return None if found is None else float(found[1]) or float("inf")


def is_trustworthy(state: SuccessorState, jobs: Sequence[SlurmJob], own: str) -> bool:
    """Returns whether one may act on what an answer of Slurm says of a successor. An answer without
    this job, which runs, may lack the successor, too: the jobs of a hidden partition are not shown,
    and a controller may have lost its state. If Slurm has given up this job, the successor is not
    its own any more. Pure.

    Args:
        jobs: the user's jobs, as Slurm has answered.
        own: the number of this job.
    """
    if state.fate in (SuccessorFate.WAITS, SuccessorFate.BLOCKED):
        return True
    return any(job.is_active for job in jobs if includes(job.number, own))


def look_at_successor(
    number: str, unseen_s: float, own: str | None = None
) -> SuccessorState | None:
    """Returns what has become of a successor job by one call of squeue, or None if Slurm does not
    answer, or does not know this job. The other arguments are those of `judge_successor`.

    Args:
        own: the number of this job. None: the answer is trusted.
    """
    try:
        jobs = queue()
    except QueueError as error:
        log.warning("cannot look at job %s: %s", number, error)
        return None
    state = judge_successor(number, jobs, unseen_s, _remembered_s)
    if own is not None and not is_trustworthy(state, jobs, own):
        log.warning("squeue does not show job %s, which runs: %s", own, state.reason)
        return None
    return state


def _remembered_s() -> float | None:
    try:
        return parse_memory_s(query(CONFIG, _QUERY_S))
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("cannot read the configuration of Slurm: %s", error)
        return None
