"""The state of a run, as a pure function of its verdict, run lock, events and Slurm's queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from hpckit.report.progress import RunProgress
from hpckit.slurm.squeue import SlurmJob


class RunState(StrEnum):
    """The state of a run in one word."""

    QUEUED = "queued"
    """Its job is queued, and nothing of it has begun."""
    STARTING = "starting"
    """A supervisor is there, or about to be, and no rank trains yet."""
    RUNNING = "running"
    WAITING = "waiting"
    """It was interrupted, and its successor job is queued."""
    ENDED = "ended"
    """It ended; the verdict says how."""
    FAILED = "failed"
    """The supervisor itself failed."""
    DEAD = "dead"
    """There is no final verdict, no holder of the run lock and no job: nothing continues by
    itself."""
    UNKNOWN = "unknown"
    """Slurm does not answer whether it has a job, or its job is in a state that is not known."""


def is_current(verdict: Mapping[str, Any] | None, progress: RunProgress) -> bool:
    """Returns whether the verdict is about the newest supervisor: it is what that recorded to have
    ended with, or is newer than its start."""
    if verdict is None:
        return False
    if progress.begun is None or progress.ended == verdict.get("kind"):
        return True  # even if a clock was set in between
    return float(verdict.get("time", 0.0)) >= progress.begun


def decide_state(
    verdict: Mapping[str, Any] | None,
    progress: RunProgress,
    is_held: bool,
    is_starting: bool,
    jobs: Sequence[SlurmJob] | None,
) -> RunState:
    """Decide the state.

    Args:
        is_held: whether a supervisor holds the run lock.
        is_starting: whether a process of this machine is about to take it.
        jobs: of this run, by Slurm's queue; None: not known. Empty for a run on this machine.
    """
    is_final = is_current(verdict, progress) and bool(verdict and verdict.get("final"))
    live = list(jobs or ())
    if progress.ended is not None or progress.failure is not None:
        live = [job for job in live if job.is_waiting or job.number != progress.job]  # it ends now
    active = [job for job in live if job.is_active]
    if is_held:
        return RunState.RUNNING if progress.is_training else RunState.STARTING
    if any(job.number == progress.job and progress.is_training for job in active):
        return RunState.RUNNING
    if active or is_starting:
        return RunState.STARTING
    if any(job.is_waiting for job in jobs or ()):
        has_begun = progress.begun is not None and not is_final
        return RunState.WAITING if has_begun else RunState.QUEUED
    if any(job.is_unknown for job in live):
        return RunState.UNKNOWN
    if is_final:
        return RunState.ENDED
    if progress.failure is not None:
        return RunState.FAILED
    return RunState.UNKNOWN if jobs is None else RunState.DEAD
