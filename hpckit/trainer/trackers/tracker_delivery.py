"""The delivery of records to one tracker, by a bounded queue and a thread that empties it.

Training queues records and never waits. While the tracker is unavailable, the newest `LIMIT`
records are kept. Lost records are counted and reported in the log and in events. A process that
ends waits only for a limited time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from hpckit.config.rules.secrets import without_secrets
from hpckit.events.event_log import Event, EventLog
from hpckit.events.schema import Degraded, DegradedSubject, TrackerBack, TrackerUndelivered
from hpckit.trainer.trackers.delivery_mark import DeliveryMark, read_mark, write_mark
from hpckit.trainer.trackers.tracker_interface import (
    StepRecord,
    Tracker,
    TrackerRejectedError,
    TrackerUnavailableError,
)

log = logging.getLogger(__name__)

LIMIT = 2000
"""Most records that the queue holds, which are about 2 MB."""
BATCH = 20
"""Most records of one request, few so that the request takes little time."""
PAUSES_S = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Seconds before each new try; the last number holds for all later tries."""


class TrackerDelivery:
    """The delivery of records to one tracker."""

    def __init__(
        self,
        name: str,
        open_run: Callable[[str | None], Tracker],
        mark: Path,
        events: EventLog,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        """Args:
        name: the name of the tracker.
        open_run: opens the tracker's run with this id, or creates one. It is called by the thread
            with the first record, and raises as `Tracker.send`.
        mark: path of the delivery mark.
        pauses_s: seconds before each new try.
        """
        self._name, self._open_run, self._path, self._events = name, open_run, mark, events
        self._pauses_s = pauses_s
        self._changed = threading.Condition()
        self._waiting: deque[StepRecord] = deque()
        self._in_delivery = 0
        self._lost = 0
        self._is_ending = self._is_done = self._is_given_up = False
        self._earlier_mark = DeliveryMark()
        self._is_unavailable = self._has_rejected = False
        self._thread: threading.Thread | None = None

    def put(self, record: StepRecord) -> None:
        """Queue a record for delivery. It is called by one thread, and never waits for the
        tracker."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        with self._changed:
            if len(self._waiting) == LIMIT:
                self._waiting.popleft()
                self._lost += 1
            self._waiting.append(record)
            self._changed.notify()

    def end(self, is_done: bool) -> None:
        """Announce that no more records will come; `is_done`: the run has ended."""
        with self._changed:
            self._is_ending, self._is_done = True, is_done
            self._changed.notify()

    def join(self, until_s: float) -> None:
        """Wait until all records are delivered, or until `until_s` by the monotonic clock, and
        report what is not delivered."""
        if self._thread is None:
            return
        self._thread.join(max(0.0, until_s - time.monotonic()))
        with self._changed:
            left = self._lost + self._in_delivery + len(self._waiting)
            if left:
                log.error("%d records were not delivered to %s", left, self._name)
                self._events.emit(TrackerUndelivered(tracker=self._name, records=left))
            self._is_given_up = True  # the events will be closed

    def _serve(self) -> None:
        try:
            self._deliver_all()
        except Exception as error:  # noqa: BLE001 (an error of a library must not end a run)
            frames = "".join(
                traceback.format_tb(error.__traceback__)
            )  # its message may have secrets
            log.error("the delivery to %s failed at\n%s", self._name, frames)
            self._report(f"{self._name} gets no more records: {_one_line(error)}")

    def _deliver_all(self) -> None:
        mark = self._earlier_mark = read_mark(self._path)
        tracker: Tracker | None = None
        while batch := self._next():
            tries = 0
            while True:
                is_last_try = self._is_ending
                try:
                    tracker = tracker or self._open(mark)
                    mark = self._send(tracker, batch, mark)
                    self._report_available()
                    break
                except TrackerRejectedError as error:
                    self._drop_rejected(len(batch), _one_line(error))
                    break
                except TrackerUnavailableError as error:
                    self._report_unavailable(_one_line(error))
                    self._report_lost(LIMIT)
                    if is_last_try:
                        return
                    self._pause(tries)
                    tries += 1
            self._in_delivery = 0
        if tracker is not None:
            self._close(tracker)

    def _send(
        self, tracker: Tracker, batch: Sequence[StepRecord], mark: DeliveryMark
    ) -> DeliveryMark:
        if new := [record for record in batch if not self._earlier_mark.has(record)]:
            tracker.send(new)
            mark = self._keep(mark.after(new, tracker.run))
        return mark

    def _open(self, mark: DeliveryMark) -> Tracker:
        tracker = self._open_run(mark.run)
        self._keep(DeliveryMark(tracker.run, mark.delivered))
        if tracker.note is not None:
            self._report(without_secrets(tracker.note, os.environ))
        return tracker

    def _keep(self, mark: DeliveryMark) -> DeliveryMark:
        try:
            write_mark(self._path, mark)
        except OSError as error:
            log.warning("%s may get some steps twice later: %s", self._name, error)
        return mark

    def _close(self, tracker: Tracker) -> None:
        try:
            tracker.close(self._is_done)
        except (TrackerUnavailableError, TrackerRejectedError) as error:
            self._report(f"{self._name} may lack the end of this attempt: {_one_line(error)}")

    def _next(self) -> list[StepRecord]:
        """Return up to `BATCH` queued records once there are any; none when no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_ending)
            count = min(BATCH, len(self._waiting))
            self._in_delivery = count
            return [self._waiting.popleft() for _ in range(count)]

    def _pause(self, tries: int) -> None:
        """Wait until the next try; the end of the process ends the wait, for a last try."""
        pause_s = self._pauses_s[min(tries, len(self._pauses_s) - 1)]
        with self._changed:
            self._changed.wait_for(lambda: self._is_ending, pause_s)

    def _drop_rejected(self, count: int, why: str) -> None:
        """Count records that the tracker rejected. Only the first rejection is reported."""
        if not self._has_rejected:
            self._has_rejected = True
            self._report(f"{self._name} rejects records: {why}")
        with self._changed:
            self._lost += count

    def _report_unavailable(self, why: str) -> None:
        if not self._is_unavailable:
            self._is_unavailable = True
            self._report(f"{self._name} cannot be reached; records wait: {why}")

    def _report_available(self) -> None:
        if self._is_unavailable:
            self._is_unavailable = False
            log.info("%s is available again", self._name)
            self._emit(TrackerBack(tracker=self._name))
            self._report_lost(1)

    def _report_lost(self, at_least: int) -> None:
        """Report how many records were dropped since the last report, if at least that many
        were."""
        with self._changed:
            lost = self._lost
            if lost < at_least:
                return
            self._lost = 0
        log.warning("%d records were not delivered to %s", lost, self._name)
        self._emit(TrackerUndelivered(tracker=self._name, records=lost))

    def _report(self, what: str) -> None:
        log.warning(what)
        self._emit(Degraded(subject=DegradedSubject.TRACKER, what=what))

    def _emit(self, event: Event) -> None:
        with self._changed:
            if not self._is_given_up:
                self._events.emit(event)


def _one_line(error: Exception) -> str:
    """Return an error as one line without secrets, which the error of a client may contain."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return without_secrets(f"{type(error).__name__}: {lines[0] if lines else ''}", os.environ)[:160]
