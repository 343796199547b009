"""Finds the jobs in Slurm's queue that carry a run, whether or not its directory records them.

A run lock is held from the start of the supervisor on. A pending job holds none, and a job that
Slurm accepted without an answer ("Socket timed out") is recorded nowhere; it is recognised by its
comment and its batch script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpckit.config.spec_error import NoAnswerError
from hpckit.config.spec_parser import SpecError
from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from hpckit.slurm.squeue import QueueError, SlurmJob, includes, jobs_of, numbers_of, queue

_ENDING = "COMPLETING"
_STATE = re.compile(r"\([a-z]+\)$")
"""What squeue says of a dependency after it: whether it is fulfilled."""


@dataclass(frozen=True)
class QueuedJob:
    """A job that has not ended."""

    number: str
    """Number of the job; for a task of an array, array and task: 7_0."""
    state: str
    """Slurm's name of the state, such as PENDING."""

    def __str__(self) -> str:
        return f"{self.number} ({self.state})"


def refuse_queued(runs: Sequence[RunDir]) -> None:
    """Refuses to submit runs that are queued.

    Raises:
        SpecError: one of these runs is in the queue already.
        NoAnswerError: Slurm does not answer.
    """
    if not runs:
        return
    try:
        jobs = queue()
    except QueueError as error:
        names = ", ".join(run.name for run in runs)
        what = (
            f"nothing is submitted, because it is unknown whether a job of {names} is already "
            "queued"
        )
        raise NoAnswerError([f"Slurm does not answer: {error}; {what}"]) from error
    if found := [
        problem for run in runs if (problem := waiting_problem(run, _queued_of(run, jobs)))
    ]:
        raise SpecError(found)


def queued(run: RunDir) -> list[QueuedJob]:
    """Returns this user's jobs that carry the run at this path, except those that are ending.

    Raises:
        QueueError: Slurm does not answer; has its message.
    """
    return _queued_of(run, queue())


def unfinished(run: RunDir) -> list[str]:
    """Returns the numbers of this user's jobs that carry the run at this path, with those that are
    ending.

    Raises:
        QueueError: Slurm does not answer; has its message.
    """
    jobs = jobs_of(run, numbers_of(run, read_events(run.events, with_steps=False)), queue())
    return [job.number for job in jobs if not job.is_over]


def waiting_for(run: RunDir, former: str) -> list[tuple[str, str]]:
    """Returns the number of each waiting job of the run that does not start before the end of job
    `former`, with its other dependencies as `scontrol update` takes them. Returns none unless that
    job is in the queue and ends.

    Raises:
        QueueError: Slurm does not answer; has its message.
    """
    every = queue()
    of_former = [job for job in every if includes(job.number, former)]
    if not of_former or not all(job.is_over or job.state == _ENDING for job in of_former):
        return []
    jobs = jobs_of(run, numbers_of(run, read_events(run.events, with_steps=False)), every)
    found = [(job.number, others_than(job.dependency, former)) for job in jobs if job.is_waiting]
    return [(number, others) for number, others in found if others is not None]


def others_than(dependency: str, former: str) -> str | None:
    """Returns a job's dependencies without the one on the end of job `former`, or None if it has
    none on it, or if one of several is enough.

    Args:
        dependency: as squeue shows it, such as afterany:7(unfulfilled),afterok:8(unfulfilled).
    """
    entries = [_STATE.sub("", entry) for entry in dependency.split(",") if entry]
    others = [entry for entry in entries if entry != f"afterany:{former}"]
    return None if "?" in dependency or len(others) == len(entries) else ",".join(others)


def _queued_of(run: RunDir, jobs: Iterable[SlurmJob]) -> list[QueuedJob]:
    return of_run(run, numbers_of(run, read_events(run.events, with_steps=False)), jobs)


def of_run(run: RunDir, known: Sequence[str], jobs: Iterable[SlurmJob]) -> list[QueuedJob]:
    """Returns the jobs of a run that are not over, nor about to be.

    Args:
        known: numbers of jobs that the run directory records.
    """
    mine = (job for job in jobs_of(run, known, jobs) if not job.is_over)
    return [QueuedJob(job.number, job.state) for job in mine if job.state != _ENDING]


def waiting_problem(run: RunDir, jobs: Sequence[QueuedJob]) -> str | None:
    """Returns why the run must not be started again, or None."""
    if not jobs:
        return None
    names = ", ".join(map(str, jobs))
    what = f"job {names} is" if len(jobs) == 1 else f"jobs {names} are"
    return (
        f"{run.name}: {what} in the queue already and will run it; hpckit status {run.path} "
        f"shows more; to start differently or with --fresh, run hpckit cancel {run.path} first"
    )
