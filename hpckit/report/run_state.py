"""What a run is doing: a pure function of its verdict, its lock, its events and Slurm's queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from hpckit.report.progress import RunProgress
from hpckit.slurm.squeue import SlurmJob


class RunState(StrEnum):
    """In one word."""

    QUEUED = "queued"
    """Its job waits, and nothing of it has begun."""
    STARTING = "starting"
    """A supervisor is there, or about to be, and nobody trains yet."""
    RUNNING = "running"
    WAITING = "waiting"
    """It was interrupted, and its next job waits to go on."""
    ENDED = "ended"
    """By its verdict."""
    FAILED = "failed"
    """The supervisor itself failed."""
    DEAD = "dead"
    """No verdict that is final, nobody holds the lock, no job: nothing goes on by itself."""
    UNKNOWN = "unknown"
    """Slurm does not say whether it has a job."""


def is_current(verdict: Mapping[str, Any] | None, progress: RunProgress) -> bool:
    """Whether the verdict is about the supervisor that came last: it says what that has told to
    have ended with, or is from after its beginning."""
    if verdict is None:
        return False
    if progress.begun is None or progress.ended == verdict.get("kind"):
        return True  # whatever the clock was set to meanwhile
    return float(verdict.get("time", 0.0)) >= progress.begun


def decide(
    verdict: Mapping[str, Any] | None,
    progress: RunProgress,
    is_held: bool,
    is_starting: bool,
    jobs: Sequence[SlurmJob] | None,
) -> RunState:
    """
    Args:
        is_held: a supervisor holds the lock.
        is_starting: a process of this machine is about to.
        jobs: of this run, by Slurm's queue; None: not known. Empty for a run on this machine.
    """
    is_final = is_current(verdict, progress) and bool(verdict and verdict.get("final"))
    active = [job for job in jobs or () if job.is_active]
    if progress.ended is not None or progress.failure is not None:
        active = [job for job in active if job.number != progress.job]  # it is on its way out
    if is_held:
        return RunState.RUNNING if progress.is_training else RunState.STARTING
    if any(job.number == progress.job and progress.is_training for job in active):
        return RunState.RUNNING
    if active or is_starting:
        return RunState.STARTING
    if any(job.is_waiting for job in jobs or ()):
        has_begun = progress.begun is not None and not is_final
        return RunState.WAITING if has_begun else RunState.QUEUED
    if is_final:
        return RunState.ENDED
    if progress.failure is not None:
        return RunState.FAILED
    return RunState.UNKNOWN if jobs is None else RunState.DEAD
