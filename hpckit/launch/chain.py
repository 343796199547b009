"""The job that goes on where this one has to leave: queued ahead, and cancelled if not needed."""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterable

from hpckit.launch.allocation import is_requeued
from hpckit.run.events import Event, EventLog
from hpckit.run.scontrol import refusal

log = logging.getLogger(__name__)

RETRY_S = 15.0
AGAIN_S = 1.0
_PATIENCE_S = 60.0


class Chain:
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
    ) -> None:
        """
        Args:
            queue: submits it; its number. Raises OSError, RuntimeError or SubprocessError.
            amend: called with the successor that is kept: what it needs to know by now.
        """
        self._queue, self._events, self._amend = queue, events, amend
        self.job: str | None = None
        self._is_kept = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chain", daemon=True)

    def __enter__(self) -> Chain:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing left to do for a successor, unless it is kept."""
        self._stop.set()
        self._thread.join(_PATIENCE_S)
        if not self._is_kept and self.job is not None and cancel(self.job):
            self._events.emit("successor_cancelled", job=self.job)

    def keep(self, within_s: float) -> bool:
        """Have the successor begin after this job: whether there is one, at the latest after so
        long."""
        self._is_kept = True
        self._thread.join(within_s)
        self._stop.set()
        if self.job is None:
            _say_nothing_goes_on(self._events)
        else:
            self._amend(self.job, within_s)
        return self.job is not None

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.job = self._queue()
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                log.warning("a successor cannot be queued, another try in %d s: %s", RETRY_S, error)
                self._stop.wait(RETRY_S)
                continue
            log.info("job %s is queued to go on after this one", self.job)
            self._events.emit("successor_queued", job=self.job)
            return


def come_again(job: str, events: EventLog, within_s: float) -> bool:
    """Have Slurm run the job again, of which this process is the last: it is told to end then.
    Whether Slurm will. A person may have done so already."""
    deadline = time.monotonic() + within_s
    while True:
        said = refusal(["requeue", job], _PATIENCE_S)
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


def cancel(job: str) -> bool:
    """Whether a job that has not begun could be cancelled."""
    command = ["scancel", "--state=PENDING", job]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.error("job %s is not cancelled: %s", job, error)
        return False
    if done.returncode:
        log.error("job %s is not cancelled: %s", job, done.stderr.strip())
    return done.returncode == 0


def silent_jobs(events: Iterable[Event]) -> int:
    """How many jobs in a row, before the one that began last, were killed before they had said how
    they ended or had a checkpoint."""
    count = 0
    for event in events:
        if event.kind == "run_started":
            count += 1
        elif event.kind in ("run_ended", "checkpoint_committed"):
            count = 0
    return max(count - 1, 0)
