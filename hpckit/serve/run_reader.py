"""Reads runs for the pages, as rarely as it can: a run that is over is read again only if its files
have changed, and one that goes on takes a bounded share of a processor."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from checkpointing import CheckpointError
from hpckit.events.event_validation import read_valid_events
from hpckit.events.schema import Event, StepLogged
from hpckit.report.cost.users import owner_of
from hpckit.report.overview import Overview, Queue, read_overview
from hpckit.report.page.content_reader import BudgetOf, read_content
from hpckit.report.page.page_file import render
from hpckit.report.page.series_downsampling import Point, downsample
from hpckit.report.run_state import RunState
from hpckit.report.why import RetryBudget
from hpckit.rundir.directory import RunDir
from hpckit.rundir.record_stamp import RecordStamp, record_stamp
from hpckit.serve.run_catalog import ServedRun
from hpckit.slurm.squeue import SlurmJob
from hpckit.system.os_errors import describe_error
from hpckit.text.quantities import count

log = logging.getLogger(__name__)

QUEUE_S, SILENT_QUEUE_S = 10.0, 60.0
"""Seconds for which one answer of Slurm serves all runs and all readers; and for which it is not
asked again after it did not answer."""
SHARE = 10
"""A run is read again after at least so many times the time that the last reading took."""
REQUEUE_S = 600.0
"""Seconds after which a run that no job continues is read again though its files are unchanged, as
somebody may have requeued its job."""
REPORT_S, FINAL_REPORT_S = 60.0, 600.0
"""Seconds for which a report is shown again, of a run that is not over and of one that is and whose
files are unchanged: it also has the run's forks and its store."""
_COLUMNS = 16
"""Parts of a small curve, of up to four points each."""
_MOST_REPORTS = 32
_SETTLED = (RunState.ENDED, RunState.FAILED, RunState.DEAD)

READ_ERRORS = (
    *(OSError, CheckpointError, ValueError, TypeError, LookupError, AttributeError),
    *(ArithmeticError, AssertionError),
)
"""What records of another release, or damaged ones, may raise: one run must not take away the pages
of the others."""


@dataclass(frozen=True)
class ReadRun:
    """What was read of a run."""

    served: ServedRun
    overview: Overview | None
    """None: it could not be read."""
    budget: RetryBudget | None
    """How much of its retry budget it has used, if its verdict has one."""
    loss: tuple[Point, ...]
    """A few losses, each of the newest attempt that made its step; None: not finite."""
    problem: str | None
    """Why it could not be read, or which of its records could not be."""
    time: float
    """When it was read, in seconds since the epoch."""

    @property
    def name(self) -> str:
        return self.served.run.name

    @property
    def key(self) -> str:
        return self.served.key


@dataclass
class _CachedRun:
    """The last reading of a run, and the lock of those that read it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    report_lock: threading.Lock = field(default_factory=threading.Lock)
    stamp: RecordStamp | None = None
    stamped_s: float = 0.0
    """When the files were first seen as they are."""
    read: ReadRun | None = None
    at_s: float = 0.0
    took_s: float = 0.0
    has_old_queue: bool = False
    """Whether Slurm was asked before that, and may know of a job since."""


@dataclass(frozen=True)
class _CachedReport:
    """A report that was made, with what it was made from and when."""

    page: str
    stamp: RecordStamp
    at_s: float
    is_final: bool

    def is_fresh(self, stamp: RecordStamp, now_s: float) -> bool:
        if not self.is_final:
            return now_s - self.at_s < REPORT_S
        return self.stamp == stamp and now_s - self.at_s < FINAL_REPORT_S


class RunReader:
    """Reads runs, for several threads at a time."""

    def __init__(self, budget_of: BudgetOf, every_s: float) -> None:
        """
        Args:
            budget_of: returns how much of its retry budget a run has used, from its events.
            every_s: least seconds between two readings of a run.
        """
        self._budget_of, self._every_s = budget_of, every_s
        self._lock = threading.Lock()
        self._kept: dict[Path, _CachedRun] = {}
        self._reports: OrderedDict[Path, _CachedReport] = OrderedDict()
        self._queue = _SharedQueue()

    def read(self, served: ServedRun) -> ReadRun:
        """Return the state of a run, read now or a little earlier. While another thread reads it
        again, that is as it was before, so that a long one does not hold up the pages of others."""
        if served.problem is not None:
            return ReadRun(served, None, None, (), served.problem, time.time())
        kept = self._kept_of(served)
        known = kept.read
        if not kept.lock.acquire(blocking=known is None) and known is not None:
            return known
        try:
            began_s, stamp = time.monotonic(), record_stamp(served.run)
            if kept.read is None or self._is_due(kept, stamp):
                slurm = self.queue()
                kept.read = self._read(served, slurm)
                if kept.stamp != stamp:
                    kept.stamp, kept.stamped_s = stamp, began_s
                kept.at_s = time.monotonic()
                kept.took_s = kept.at_s - began_s
                kept.has_old_queue = slurm.is_older(kept.stamped_s)
            return kept.read
        finally:
            kept.lock.release()

    def report(self, served: ServedRun) -> str:
        """Return the page that `hpckit report` writes, as HTML.

        Raises:
            OSError, CheckpointError: it cannot be read.
        """
        kept = self._kept_of(served)
        with kept.report_lock:
            stamp, now_s = record_stamp(served.run), time.monotonic()
            with self._lock:
                known = self._reports.get(served.run.path)
            if known is not None and known.is_fresh(stamp, now_s):
                return known.page
            content = read_content(served.run, self.queue(), self._budget_of)
            page, is_final = render([content], "html"), content.overview.state in _SETTLED
            with self._lock:
                self._reports[served.run.path] = _CachedReport(page, stamp, now_s, is_final)
                self._reports.move_to_end(served.run.path)
                while len(self._reports) > _MOST_REPORTS:
                    self._reports.popitem(last=False)
            return page

    def queue(self) -> _SharedQueue:
        """Return Slurm's queue, which is asked when a run of Slurm's is first read."""
        with self._lock:
            if self._queue.is_old(time.monotonic()):
                self._queue = _SharedQueue()
            return self._queue

    def _kept_of(self, served: ServedRun) -> _CachedRun:
        with self._lock:
            return self._kept.setdefault(served.run.path, _CachedRun())

    def _is_due(self, kept: _CachedRun, stamp: RecordStamp) -> bool:
        assert kept.read is not None
        it, every_s = kept.read.overview, max(self._every_s, SHARE * kept.took_s)
        if it is not None and it.state in _SETTLED and kept.stamp == stamp:
            if not it.is_slurm or (it.is_ended and not kept.has_old_queue):
                return False
            if not kept.has_old_queue:  # a job may be requeued
                every_s = max(every_s, REQUEUE_S)
        return time.monotonic() - kept.at_s >= every_s

    def _read(self, served: ServedRun, slurm: Queue) -> ReadRun:
        now = time.time()
        try:
            validated = read_valid_events(served.run)
            overview = read_overview(served.run, slurm, validated.events)
            budget = self._budget_of(overview, validated.events)
            found = (
                _damage(validated.torn + validated.unsound),
                overview.problem,
                _foreign(overview),
            )
            curve = small_curve(validated.events)
        except READ_ERRORS as error:
            return ReadRun(served, None, None, (), describe_problem(error, served.run), now)
        problem = "; ".join(filter(None, found)) or None
        return ReadRun(served, overview, budget, curve, problem, now)


class _SharedQueue(Queue):
    """A queue that several threads ask."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._asked_s: float | None = None
        self._answered_s: float | None = None

    def jobs(self) -> list[SlurmJob] | None:
        with self._lock:
            if self._asked_s is None:
                self._asked_s = time.monotonic()
            found = super().jobs()
            if self._answered_s is None:
                self._answered_s = time.monotonic()
            return found

    def is_older(self, then_s: float) -> bool:
        """Return whether Slurm was asked before that time."""
        return self._asked_s is not None and self._asked_s < then_s

    def is_old(self, now_s: float) -> bool:
        """Return whether Slurm is to be asked again."""
        lasts_s = QUEUE_S if self.error is None else SILENT_QUEUE_S
        return self._answered_s is not None and now_s - self._answered_s > lasts_s


def describe_problem(error: Exception, run: RunDir) -> str:
    """Return one line about the error of reading a run that is handled now, and log one that nobody
    expects, once."""
    if isinstance(error, OSError):
        return f"it cannot be read: {describe_error(error, run.path)}"
    if isinstance(error, CheckpointError):
        return f"its checkpoints cannot be read: {error}"
    words = f"it cannot be read: {type(error).__name__}: {error}"
    _log_once(run.path, words)
    return words


@lru_cache(maxsize=1024)
def _log_once(path: Path, words: str) -> None:
    log.error("%s: %s", path, words, exc_info=True)


def small_curve(events: Sequence[Event]) -> tuple[Point, ...]:
    """Return a few losses by step, each of the newest attempt that made the step. Pure."""
    losses: dict[int, float] = {}
    for event in events:
        if isinstance(event, StepLogged) and event.loss is not None:
            losses[event.step] = float(event.loss)
    points = sorted(losses.items())
    return downsample(points, _COLUMNS)


def _damage(lines: int) -> str | None:
    return f"left out of events.jsonl: {count(lines, 'damaged line')}" if lines else None


def _foreign(it: Overview) -> str | None:
    """Return why the state of another user's run may be wrong: the queue has this user's jobs."""
    if not it.is_slurm or it.state is not RunState.DEAD or it.run.path.stat().st_uid == os.getuid():
        return None
    return f"it belongs to {owner_of(it.run)}, and may wait: Slurm was asked for your jobs alone"
