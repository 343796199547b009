"""Handling of the job before this one: it may still run though Slurm has given it up, or may have
ended the run permanently.

A node that is cut off from Slurm may still reach the run directory. The supervisor on it detects
this and ends, but the successor may start before that.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hpckit.agent.orphaned_job import is_running
from hpckit.agent.verdict_record import VerdictKind
from hpckit.events.event_log import Event, EventLog, read_events
from hpckit.events.schema import (
    Degraded,
    DegradedSubject,
    GenerationEnded,
    GenerationStarted,
    LeaveRequested,
    RunEnded,
    RunStarted,
    SuccessorCancelled,
    SuccessorQueued,
)
from hpckit.events.since_last_start import since_start
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.rundir.directory import RunDir, lock_paths
from hpckit.rundir.lock import RunHeldError, hold_all
from hpckit.slurm.scontrol import show_job
from hpckit.supervisor.supervised_run import SupervisedRun

log = logging.getLogger(__name__)

PATIENCE_S = 600.0
"""Seconds for a job that Slurm has given up to end: it queries Slurm several times without answer,
and may begin to do so only when Slurm gives its node up (SlurmdTimeout, by default 300 s)."""
_POLL_S = 1.0
_QUERY_S = 20.0
_FINAL_VERDICTS = (VerdictKind.DONE, VerdictKind.STOPPED, VerdictKind.PERMANENT)


@contextmanager
def hold_run(supervised: SupervisedRun) -> Iterator[None]:
    """Holds the run lock for the duration of the block. It waits for its release if the previous
    job of the run holds it, though Slurm considers that job ended.

    Raises:
        RunHeldError: another process holds the lock, which does not end or not in time.
    """
    run, events = supervised.run, supervised.events

    def is_ending(error: RunHeldError) -> bool:
        mine = supervised.job_number
        if mine is None or not is_given_up(former_job(_events(run)), mine):
            return False
        events.emit(
            Degraded(
                subject=DegradedSubject.RUN_LOCK,
                what=f"{error}; its job has ended: waiting for the process to end",
            )
        )
        return True

    what = f"submission {supervised.submission} of {run.name}"
    with hold_after(lock_paths(supervised.spec, run), what, is_ending):
        yield


@contextmanager
def hold_after(
    paths: Iterable[Path],
    what: str,
    is_ending: Callable[[RunHeldError], bool],
    patience_s: float = PATIENCE_S,
) -> Iterator[None]:
    """Holds the locks as `hold_all` does; if one is held and `is_ending`, called once, returns
    True, waits for its release.

    Raises:
        RunHeldError: a lock is held by another process, which does not end or not in time.
    """
    paths, deadline, asked = list(paths), time.monotonic() + patience_s, False
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(hold_all(paths, what))
                break
            except RunHeldError as error:
                if time.monotonic() > deadline or not (asked or is_ending(error)):
                    raise
                if not asked:
                    log.warning("%s: waiting for its end", error)
                asked = True
                time.sleep(_POLL_S)
        yield


def is_needless(run: RunDir, job: str | None, events: EventLog) -> bool:
    """Returns whether this job is the successor of a job after which the run was not to continue:
    it was to be cancelled, but Slurm did not do so in time. If so, emits events that say it.

    Args:
        job: the number of this job. None: it is not a Slurm job.
    """
    if job is None or (ended := end_before(_events(run), job)) is None:
        return False
    what = f"job {job} was not cancelled when the run ended ({ended}): it ends immediately"
    log.warning(what)
    events.emit(Degraded(subject=DegradedSubject.SUCCESSOR_CANCELLATION, what=what))
    events.emit(SuccessorCancelled(job=job))
    return True


def _events(run: RunDir) -> list[Event]:
    """Returns the events of a run without its steps, which tell nothing of its jobs."""
    return read_events(run.events, with_steps=False)


def end_before(events: Iterable[Event], job: str) -> str | None:
    """Returns how the run has ended permanently since a person started it, if `job` was queued by a
    job of that run and not by a person; else None."""
    found = since_start(events)
    if not any(isinstance(e, SuccessorQueued) and e.job == job for e in found):
        return None
    ended: str | None = None
    for event in found:
        match event:
            case GenerationStarted():
                ended = None
            case GenerationEnded() if event.final:
                ended = event.verdict
            case RunEnded() if event.verdict in _FINAL_VERDICTS:
                ended = event.verdict
            case LeaveRequested() if event.request == WorkerRequest.STOP.name.lower():
                ended = str(VerdictKind.STOPPED)  # whatever became of its process
    return ended


def former_job(events: Iterable[Event]) -> str | None:
    """Returns the job of the supervisor that started last, or None if it was in none."""
    started = [event for event in events if isinstance(event, RunStarted)]
    return started[-1].job if started else None


def is_given_up(former: str | None, mine: str, ask: Callable[[str], str] | None = None) -> bool:
    """Returns whether Slurm considers the former job ended or, if it is this job, has requeued it.
    A job unknown to Slurm has ended, as Slurm forgets only ended jobs.

    Args:
        former, mine: job numbers. None: not in a Slurm job.
        ask: returns the output of `scontrol show job` for a job; for tests.
    """
    if former is None or former == mine:
        return former is not None
    try:
        found = (ask or _ask)(former)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("cannot query Slurm about job %s: %s", former, error)
        return True
    return not is_running(found)


def _ask(job: str) -> str:
    return show_job(job, _QUERY_S)
