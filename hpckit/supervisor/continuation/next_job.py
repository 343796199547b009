"""Continuation of a run whose Slurm job has to leave before the run's end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from hpckit.config.spec import RunSpec
from hpckit.events.event_log import Event, EventLog, read_events
from hpckit.events.schema import Degraded, DegradedSubject
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import Allocation
from hpckit.slurm.queued_jobs import queued
from hpckit.supervisor.continuation.expedited_requeue import (
    is_expedited,
    let_job_end,
    lost_hosts,
    wait_for_requeue,
)
from hpckit.supervisor.continuation.expedited_start import config, delay, expedite_start
from hpckit.supervisor.continuation.job_chain import KEEP_S, JobChain, requeue_job, silent_jobs
from hpckit.supervisor.continuation.successor_watch import look_at_successor
from hpckit.supervisor.node_selection.exclude_list import ExcludeList
from hpckit.supervisor.supervised_run import SupervisedRun

log = logging.getLogger(__name__)

MOST_SILENT = 3
"""Number of successive jobs that may be killed before their first checkpoint and still be followed
by another one."""


class JobRequeue:
    """Requeues the job of this process at the end of the `with` block, if the run is to continue in
    this way. The run lock has to be released by then: Slurm signals this process to end."""

    def __init__(self, run: RunDir, spec: RunSpec, events: EventLog, own: str | None) -> None:
        """
        Args:
            own: the number of this process's job. None: it is in none.
        """
        self._run, self._spec, self._events = run, spec, events
        self._own = own if spec.launch.continuation != "chain" else None
        self._job: str | None = None

    def request(self, job: str) -> None:
        """Has the job requeued at the end of the block, even if the block fails."""
        self._job = job

    def withdraw(self) -> None:
        """Cancels the requeue, because the last verdict is final."""
        self._job = None

    def __enter__(self) -> JobRequeue:
        return self

    def __exit__(self, *_: object) -> None:
        if self._job is not None:
            requeue(self._run, self._spec, self._job, self._events)
        elif self._own is not None:
            let_job_end(self._own, self._events)


def continued(
    supervised: SupervisedRun, written: Sequence[Event], requeue_: JobRequeue
) -> AbstractContextManager[JobChain | None]:
    """Prepares the continuation of the run after this job, by a successor job that is queued now or
    by a requeue, as `launch.continuation` says.

    Args:
        written: the run's events so far.
    """
    launch = supervised.spec.launch
    is_wanted = supervised.job is not None and launch.continuation != "none"
    if not is_wanted or is_hopeless(silent_jobs(written), supervised.events):
        return nullcontext()
    assert supervised.job is not None  # is_wanted
    if launch.is_requeued:
        requeue_.request(supervised.job.job)
        return nullcontext()
    return _queued_successor(supervised, supervised.job)


@contextmanager
def _queued_successor(supervised: SupervisedRun, job: Allocation) -> Iterator[JobChain]:
    """Keeps a successor job in the queue for the duration of the block. The successor is cancelled
    at the end of the block, unless it is kept, the block fails, or this process is killed."""
    from hpckit.submit.job_submission import submit_job  # gives submitit the supervisor

    run, spec, events = supervised.run, supervised.spec, supervised.events
    queue = partial(submit_job, run, spec, supervised.submission, (job.job,))
    bad = ExcludeList(run, spec, events)
    find = partial(_waiting, run, job.job)

    def queue_without_bad() -> str:
        hosts = bad.hosts()
        return bad.record(queue(hosts).job_id, hosts)

    look = partial(look_at_successor, own=job.job)
    with JobChain(queue_without_bad, events, bad.keep_from, find, bad.review, look) as chain:
        yield chain


def _waiting(run: RunDir, mine: str) -> str | None:
    """Returns the number of another pending job of the run, if there is one.

    Raises:
        QueueError: Slurm does not answer.
    """
    others = (job.number for job in queued(run) if job.number != mine and job.state == "PENDING")
    return next(others, None)


def is_hopeless(silent: int, events: EventLog) -> bool:
    """Returns whether too many successive jobs ended without an event or a checkpoint for another
    one to follow."""
    if silent < MOST_SILENT:
        return False
    what = (
        f"{silent} jobs in a row ended with neither a verdict nor a checkpoint, so no other job is "
        "queued"
    )
    log.error(what)
    events.emit(Degraded(subject=DegradedSubject.SUCCESSOR, what=what))
    return True


def requeue(run: RunDir, spec: RunSpec, job: str, events: EventLog) -> None:
    """Requeues the job itself with an early start time and without the bad nodes. A job with
    expedited requeues needs no start time, as Slurm does not hold it back, and is left to Slurm if
    it has lost a node: Slurm then queues it before all other jobs."""
    delay_s, is_fast, is_again = delay(config()), is_expedited(job), False
    if is_fast and wait_for_requeue(job, lost_hosts(read_events(run.events)), events):
        return

    def again() -> bool:
        nonlocal is_again
        is_again = requeue_job(job, events, KEEP_S)
        return is_again

    ExcludeList(run, spec, events).keep_from(job, KEEP_S, again)
    if is_again and not is_fast:
        expedite_start(job, delay_s, events, KEEP_S)
