"""Continuation of a run whose Slurm job has to leave before the run's end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from hpckit.config.spec import RunSpec
from hpckit.events.event_log import EventLog
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import Allocation
from hpckit.slurm.queued_jobs import queued
from hpckit.supervisor.continuation.expedited_start import config, delay, expedite_start
from hpckit.supervisor.continuation.job_chain import KEEP_S, JobChain, requeue_job
from hpckit.supervisor.node_selection.exclude_list import ExcludeList

log = logging.getLogger(__name__)

MOST_SILENT = 3
"""Number of successive jobs that may be killed before their first checkpoint and still be followed
by another one."""


@contextmanager
def queued_successor(
    run: RunDir, spec: RunSpec, submission: int, job: Allocation, events: EventLog
) -> Iterator[JobChain]:
    """Keeps a successor job in the queue for the duration of the block. The successor is cancelled
    at the end of the block, unless it is kept, the block fails, or this process is killed."""
    from hpckit.submit.job_submission import submit_job  # gives submitit the supervisor

    queue = partial(submit_job, run, spec, submission, job.job if job.is_task else None)
    bad = ExcludeList(run, spec, events)
    find = partial(_waiting, run, job.job)
    with JobChain(lambda: queue(bad.hosts()).job_id, events, bad.keep_from, find) as chain:
        yield chain


def _waiting(run: RunDir, mine: str) -> str | None:
    """Returns the number of another pending job of the run, if there is one.

    Raises:
        QueueError: Slurm does not answer.
    """
    others = (job.number for job in queued(run) if job.number != mine and job.state == "PENDING")
    return next(others, None)


def is_hopeless(silent: int, events: EventLog) -> bool:
    """Whether too many successive jobs ended without an event or a checkpoint for another one to
    follow."""
    if silent < MOST_SILENT:
        return False
    what = f"{silent} jobs have ended without a word or a checkpoint: no other is queued"
    log.error(what)
    events.emit("degraded", what=what)
    return True


def requeue(run: RunDir, spec: RunSpec, job: str, events: EventLog) -> None:
    """Requeues the job itself with an early start time and without the bad nodes."""
    delay_s, is_again = delay(config()), False

    def again() -> bool:
        nonlocal is_again
        is_again = requeue_job(job, events, KEEP_S)
        return is_again

    ExcludeList(run, spec, events).keep_from(job, KEEP_S, again)
    if is_again:
        expedite_start(job, delay_s, events, KEEP_S)
