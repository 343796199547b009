"""How a Slurm job is gone on from that has to leave before the end of its run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from hpckit.launch.allocation import Allocation
from hpckit.launch.beginning import begin_soon, config, delay
from hpckit.launch.chain import KEEP_S, Chain, come_again
from hpckit.launch.exclusion import Exclusion
from hpckit.launch.queued import queued
from hpckit.run.directory import RunDir
from hpckit.run.events import EventLog
from hpckit.run.spec import RunSpec

log = logging.getLogger(__name__)

MOST_SILENT = 3
"""Jobs in a row that may be killed before they have a checkpoint, with another one after them."""


@contextmanager
def chained(
    run: RunDir, spec: RunSpec, submission: int, job: Allocation, events: EventLog
) -> Iterator[Chain]:
    """Have another job wait, that goes on where this one has to leave. It is cancelled at the end
    of the block, unless it is kept, the block fails, or this process is killed."""
    from hpckit.launch.submit import submit_job  # which hands the supervisor to submitit

    queue = partial(submit_job, run, spec, submission, job.job if job.is_task else None)
    bad = Exclusion(run, spec, events)
    find = partial(_waiting, run, job.job)
    with Chain(lambda: queue(bad.hosts()).job_id, events, bad.keep_from, find) as chain:
        yield chain


def _waiting(run: RunDir, mine: str) -> str | None:
    """Another job of the run than this one, which has not begun.

    Raises:
        QueueError: Slurm does not answer.
    """
    others = (job.number for job in queued(run) if job.number != mine and job.state == "PENDING")
    return next(others, None)


def is_hopeless(silent: int, events: EventLog) -> bool:
    """Whether so many jobs have ended without a word that no other one is to come."""
    if silent < MOST_SILENT:
        return False
    what = f"{silent} jobs have ended without a word or a checkpoint: no other is queued"
    log.error(what)
    events.emit("degraded", what=what)
    return True


def requeue(run: RunDir, spec: RunSpec, job: str, events: EventLog) -> None:
    """Have the job itself run again, soon, on other nodes than those that are bad."""
    delay_s, is_again = delay(config()), False

    def again() -> bool:
        nonlocal is_again
        is_again = come_again(job, events, KEEP_S)
        return is_again

    Exclusion(run, spec, events).keep_from(job, KEEP_S, again)
    if is_again:
        begin_soon(job, delay_s, events, KEEP_S)
