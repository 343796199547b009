"""The job that goes on where this one has to leave: queued ahead, and cancelled if not needed."""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType

from hpckit.events.event_log import Event, EventLog
from hpckit.events.since_last_start import since_start
from hpckit.slurm.allocation import is_requeued
from hpckit.slurm.scontrol import run_scontrol

log = logging.getLogger(__name__)

RETRY_S = 15.0
AGAIN_S = 1.0
KEEP_S = 10.0
"""Seconds in which a job that leaves tries once more to have a successor."""
PATIENCE_S = 60.0
"""Seconds at the end of a job for what Slurm has not done yet."""
_QUERY_S = 60.0


class JobChain:
    """Queues the successor in a thread of its own: Slurm's controller may be slow, or down for a
    while, and training does not wait for it.

    Slurm starts the successor when no other job of its name is left (`--dependency=singleton`),
    however this one ends: no requeue, which waits two minutes, and no credential is needed.
    """

    def __init__(
        self,
        queue: Callable[[], str],
        events: EventLog,
        amend: Callable[[str, float], None] = lambda job, within_s: None,
        find: Callable[[], str | None] = lambda: None,
    ) -> None:
        """
        Args:
            queue: submits it; its number. Raises OSError, RuntimeError or SubprocessError.
            amend: called with the successor that is kept: what it needs to know by now.
            find: the number of one that waits already: Slurm may have taken it, and not have said
                so. Raises QueueError.
        """
        self._queue, self._events, self._amend, self._find = queue, events, amend, find
        self.job: str | None = None
        self._is_kept = self._is_dropped = self._was_refused = False
        self._wake = threading.Event()
        self._is_queued = threading.Event()
        self._is_decided = threading.Event()  # no other try
        self._thread = threading.Thread(target=self._run, name="chain", daemon=True)

    def __enter__(self) -> JobChain:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """There is nothing left to do for a successor, unless it is kept, or what this job failed
        of was nobody's decision: that may pass, and jobs that fail in a row are counted."""
        if isinstance(error, Exception) and not self._is_dropped:
            self.keep(KEEP_S)
        if not self._is_kept:
            self.drop()
        self._decide()
        self._thread.join(PATIENCE_S)
        if self._is_dropped and self._thread.is_alive():
            self._say_it_waits()

    def keep(self, within_s: float) -> bool:
        """Have the successor begin after this job: whether there is one, at the latest after so
        long."""
        self._is_kept = True
        self._wake.set()
        self._is_queued.wait(within_s)
        if self.job is None:
            self._decide()
            _say_nothing_goes_on(self._events)
        else:
            self._amend(self.job, within_s)
        return self.job is not None

    def drop(self) -> None:
        """The run ends for good: the successor is cancelled, from now on. Returns at once."""
        self._is_dropped = True
        self._decide()

    def _decide(self) -> None:
        self._is_decided.set()
        self._wake.set()

    def _run(self) -> None:
        while self.job is None and not self._is_decided.is_set():
            self._try()
        self._is_decided.wait()
        while self._is_dropped and self.job is not None and not self._is_cancelled(self.job):
            time.sleep(AGAIN_S)

    def _try(self) -> None:
        self._wake.clear()
        try:
            job = (self._find() if self._was_refused else None) or self._queue()
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            self._tell_refused(error)
            if not (self._is_decided.is_set() or self._wake.is_set()):
                self._wake.wait(AGAIN_S if self._is_kept else RETRY_S)
            return
        log.info("job %s is queued to go on after this one", job)
        self._events.emit("successor_queued", job=job)
        self.job = job
        self._is_queued.set()

    def _tell_refused(self, error: Exception) -> None:
        """In the events, once: Slurm's words are what a person can do something about."""
        log.warning("a successor cannot be queued, another try in %d s: %s", RETRY_S, error)
        if self._was_refused:
            return
        self._was_refused = True
        said = " ".join(str(error).split()) or type(error).__name__
        what = f"no job can be queued to go on after this one, tried again each {RETRY_S:.0f} s"
        self._events.emit("degraded", what=f"{what}: {said}")

    def _is_cancelled(self, job: str) -> bool:
        problem = cancel(job)
        if problem is None:
            self._events.emit("successor_cancelled", job=job)
        else:
            log.error("job %s is not cancelled: %s", job, problem)
        return problem is None

    def _say_it_waits(self) -> None:
        what = f"job {self.job}, which was to go on, is not cancelled: scancel {self.job} does it"
        self._events.emit("degraded", what=f"{what}; where it begins, it leaves by itself")


def requeue_job(job: str, events: EventLog, within_s: float) -> bool:
    """Have Slurm run the job again, of which this process is the last: it is told to end then.
    Whether Slurm will. A person may have done so already."""
    deadline = time.monotonic() + within_s
    while True:
        said = run_scontrol(["requeue", job], _QUERY_S)
        if said is None or is_requeued(job):
            log.info("job %s is requeued", job)
            events.emit("job_requeued", job=job)
            return True
        log.error("job %s is not requeued: %s", job, said)
        if time.monotonic() > deadline:
            _say_nothing_goes_on(events)
            return False
        time.sleep(AGAIN_S)


def _say_nothing_goes_on(events: EventLog) -> None:
    what = "no job is queued to go on: start it again with the same command"
    log.error(what)
    events.emit("degraded", what=what)


def cancel(job: str) -> str | None:
    """Cancel a job, if it has not begun; None: it does not wait any more, else why it does."""
    command = ["scancel", "--state=PENDING", job]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_QUERY_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if not done.returncode or "Invalid job id" in done.stderr:
        return None
    return done.stderr.strip() or "scancel failed"


def silent_jobs(events: Iterable[Event]) -> int:
    """How many jobs in a row, before the one that began last, were killed before they had said how
    they ended or had a checkpoint; since a person has started the run."""
    count = 0
    for event in since_start(events):
        if event.kind == "run_started":
            count += 1
        elif event.kind in ("run_ended", "checkpoint_committed"):
            count = 0
    return max(count - 1, 0)
