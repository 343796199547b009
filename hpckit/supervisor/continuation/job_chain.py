"""Queues the successor job ahead of the end of this job, and cancels it if it is not needed."""

from __future__ import annotations

import logging
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterable

from checkpointing.events import CheckpointCommitted
from hpckit.events.event_log import Event, EventLog
from hpckit.events.schema import (
    Degraded,
    DegradedSubject,
    JobRequeued,
    RunEnded,
    RunStarted,
    SuccessorBlocked,
    SuccessorCancelled,
    SuccessorQueued,
    SuccessorUnblocked,
)
from hpckit.events.since_last_start import since_start
from hpckit.slurm.allocation import is_requeued
from hpckit.slurm.scontrol import run_scancel, run_scontrol
from hpckit.supervisor.continuation.successor_watch import (
    WATCH_S,
    SuccessorFate,
    SuccessorState,
)

log = logging.getLogger(__name__)

RETRY_S = 15.0
AGAIN_S = 1.0
REVIEW_EACH = 4
"""The number of looks at the successor of which one also reviews it."""
MOST_REPLACED = 5
"""The number of successors that are replaced in one job, so that a fault of the site does not fill
the queue."""
KEEP_S = 10.0
"""Seconds in which a job that leaves tries once more to queue a successor."""
PATIENCE_S = 60.0
"""Seconds at the end of a job to wait for operations that Slurm has not completed."""
_QUERY_S = 60.0


class JobChain:
    """Queues the successor job in a thread of its own, so that training does not wait for Slurm's
    controller, which may be slow or down for a while.

    Slurm starts the successor when this job is over (`--dependency=afterany`), however it ends:
    this avoids a requeue, which waits two minutes, and needs no credential.
    """

    def __init__(
        self,
        queue: Callable[[], str],
        events: EventLog,
        amend: Callable[[str, float], None] = lambda job, within_s: None,
        find: Callable[[], str | None] = lambda: None,
        review: Callable[[str], SuccessorState | None] = lambda job: None,
        look: Callable[[str, float], SuccessorState | None] = lambda job, unseen_s: None,
    ) -> None:
        """
        Args:
            queue: submits the successor and returns its number. Raises OSError, RuntimeError or
                SubprocessError.
            amend: updates the successor that is kept, at the end of this job.
            find: returns the number of a pending successor, if there is one: Slurm may have
                accepted it without an answer, or a person may have queued it in place of one that
                was lost. Raises QueueError.
            review: updates the pending successor, as this job may be killed at any time, and
                returns what blocks it, or None.
            look: returns what has become of the successor, which was in the queue so many seconds
                ago, or None if Slurm does not answer.
        """
        self._queue, self._events, self._amend, self._find = queue, events, amend, find
        self._review, self._look = review, look
        self.job: str | None = None
        self._looks = self._replaced = 0
        self._seen_s = 0.0  # when the successor was in the queue for certain
        self._blocked: str | None = None  # the reason that was reported
        self._is_kept = self._is_dropped = False
        self._is_left_alone = False  # somebody wants no successor
        self._problem: str | None = None  # of the last try
        self._wake = threading.Event()
        self._is_queued = threading.Event()
        self._is_decided = threading.Event()  # no further try to queue one
        self._thread = threading.Thread(target=self._run, name="chain", daemon=True)

    def __enter__(self) -> JobChain:
        self._thread.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        """Cancels the successor unless it is kept. If the block failed with an exception that no
        verdict accounts for, the successor is kept: the failure may pass, and successive failing
        jobs are counted."""
        if isinstance(error, Exception) and not self._is_dropped:
            self.keep(KEEP_S)
        if not self._is_kept:
            self.drop()
        self._decide()
        self._thread.join(PATIENCE_S)
        if self._is_dropped and self._thread.is_alive():
            self._report_still_queued()

    def keep(self, within_s: float) -> bool:
        """Lets the successor run after this job. Waits up to `within_s` seconds and returns whether
        there is a successor."""
        self._is_kept = True
        self._wake.set()
        if not self._is_left_alone:
            self._is_queued.wait(within_s)
        if (job := self.job) is None:
            self._decide()
            _report_no_successor(self._events, self._problem or "Slurm has not answered yet")
        else:
            self._amend(job, within_s)
        return job is not None

    def drop(self) -> None:
        """Cancels the successor, as the run has ended finally. Returns immediately."""
        self._is_dropped = True
        self._decide()

    def _decide(self) -> None:
        self._is_decided.set()
        self._wake.set()

    def _run(self) -> None:
        while not self._is_decided.is_set():
            if self.job is None and not self._is_left_alone:
                self._try_to_queue()
            elif not self._is_decided.wait(WATCH_S * random.uniform(0.8, 1.2)):
                self._watch()
        while self._is_dropped and self.job is not None and not self._is_cancelled(self.job):
            time.sleep(AGAIN_S)

    def _try_to_queue(self) -> None:
        self._wake.clear()
        try:
            may_be_there = self._problem is not None or self._replaced > 0
            job = (self._find() if may_be_there else None) or self._queue()
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            self._report_refused(error)
            if not (self._is_decided.is_set() or self._wake.is_set()):
                self._wake.wait(AGAIN_S if self._is_kept else RETRY_S)
            return
        log.info("successor job %s is queued", job)
        self._events.emit(SuccessorQueued(job=job))
        self.job, self._seen_s = job, time.monotonic()
        self._is_queued.set()

    def _watch(self) -> None:
        """Looks at the successor, and acts if it is blocked or no longer there."""
        if (job := self.job) is None or self._is_kept:
            return
        self._looks += 1
        state = self._look(job, time.monotonic() - self._seen_s)
        if state is None or self._is_kept or self._is_decided.is_set():
            return
        is_due = self._looks % REVIEW_EACH == 0 or self._blocked is not None
        if state.fate is SuccessorFate.WAITS and is_due:
            state = self._review(job) or state
        match state.fate:
            case SuccessorFate.WAITS | SuccessorFate.BLOCKED:
                self._seen_s = time.monotonic()
                self._report_blocked(job, state)
            case SuccessorFate.CANCELLED:
                self._leave_alone(job, state.reason)
            case SuccessorFate.LOST:
                self._replace(job, state.reason)
            case SuccessorFate.NEVER:
                self._is_queued.clear()  # a job that leaves now waits for the other one
                if (problem := cancel(job)) is None:
                    what = f"job {job} could not start and is cancelled: {state.reason}"
                    self._replace(job, what)
                else:
                    self._is_queued.set()
                    log.error("job %s is not cancelled: %s", job, problem)

    def _report_blocked(self, job: str, state: SuccessorState) -> None:
        reason = state.reason if state.fate is SuccessorFate.BLOCKED else None
        if reason == self._blocked:
            return
        self._blocked = reason
        if reason is None:
            log.info("successor job %s is no longer blocked", job)
            self._events.emit(SuccessorUnblocked(job=job))
        else:
            log.error("successor job %s cannot start: %s; %s", job, reason, state.advice)
            self._events.emit(SuccessorBlocked(job=job, reason=reason, advice=state.advice))

    def _leave_alone(self, job: str, reason: str) -> None:
        """Respects that somebody has cancelled the successor."""
        self.job, self._is_left_alone, self._problem = None, True, reason
        self._events.emit(SuccessorCancelled(job=job))
        what = f"{reason}: no other one is queued; hpckit resume continues the run after this job"
        log.warning(what)
        self._events.emit(Degraded(subject=DegradedSubject.SUCCESSOR, what=what))

    def _replace(self, job: str, reason: str) -> None:
        """Has another successor queued, up to `MOST_REPLACED` times."""
        if self._replaced == MOST_REPLACED:
            self._leave_alone(job, f"{reason}, as {MOST_REPLACED} others before")
            return
        log.warning("%s: another job is queued", reason)
        self._replaced += 1
        self._is_queued.clear()
        self.job, self._blocked = None, None
        self._events.emit(SuccessorCancelled(job=job))

    def _report_refused(self, error: Exception) -> None:
        """Emits an event on the first refusal, with Slurm's message, which shows what to change."""
        log.warning("cannot queue a successor job, trying again in %d s: %s", RETRY_S, error)
        is_first = self._problem is None
        self._problem = problem = " ".join(str(error).split()) or type(error).__name__
        if not is_first:
            return
        what = f"no successor job can be queued, and hpckit tries again every {RETRY_S:.0f} s"
        self._events.emit(Degraded(subject=DegradedSubject.SUCCESSOR, what=f"{what}: {problem}"))

    def _is_cancelled(self, job: str) -> bool:
        problem = cancel(job)
        if problem is None:
            self._events.emit(SuccessorCancelled(job=job))
        else:
            log.error("job %s is not cancelled: %s", job, problem)
        return problem is None

    def _report_still_queued(self) -> None:
        what = f"job {self.job}, which was to continue the run, is not cancelled"
        advice = f"use scancel {self.job}; if it starts, it ends immediately"
        self._events.emit(
            Degraded(subject=DegradedSubject.SUCCESSOR_CANCELLATION, what=f"{what}: {advice}")
        )


def requeue_job(job: str, events: EventLog, within_s: float) -> bool:
    """Requeues the job of which this process is the last, and returns whether Slurm will run it
    again. Slurm signals this process to end then. A person may have requeued the job already."""
    deadline = time.monotonic() + within_s
    while True:
        problem = run_scontrol(["requeue", job], _QUERY_S)
        if problem is None or is_requeued(job):
            log.info("job %s is requeued", job)
            events.emit(JobRequeued(job=job))
            return True
        log.error("job %s is not requeued: %s", job, problem)
        if time.monotonic() > deadline:
            _report_no_successor(events, problem)
            return False
        time.sleep(AGAIN_S)


def _report_no_successor(events: EventLog, problem: str) -> None:
    again = "start the run again with the same command"
    what = f"no successor job is queued: {again}; Slurm's last answer: {problem}"
    log.error(what)
    events.emit(Degraded(subject=DegradedSubject.SUCCESSOR, what=what))


def cancel(job: str) -> str | None:
    """Cancels a job if it is pending. Returns None if it is not pending any more, and the error
    otherwise."""
    return run_scancel(["--state=PENDING", job], _QUERY_S)


def silent_jobs(events: Iterable[Event]) -> int:
    """Returns how many successive jobs before the last started one were killed without a recorded
    end or a checkpoint, since a person started the run."""
    count = 0
    for event in since_start(events):
        if isinstance(event, RunStarted):
            count += 1
        elif isinstance(event, RunEnded | CheckpointCommitted):
            count = 0
    return max(count - 1, 0)
