"""Records on their way to one tracker: a bounded queue, and a thread of its own that empties it.

Training puts records in and never waits. While the tracker is away they are kept, the newest
`LIMIT` of them; what is lost is counted, and told in the log and in events. A process that ends
does not wait for a tracker for longer than it is told to.
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
from hpckit.events.event_log import EventLog
from hpckit.trainer.trackers.delivery_mark import DeliveryMark, read_mark, write_mark
from hpckit.trainer.trackers.tracker_interface import (
    StepRecord,
    Tracker,
    TrackerRejectedError,
    TrackerUnavailableError,
)

log = logging.getLogger(__name__)

LIMIT = 2000
"""Records that wait at most; some 2 MB."""
BATCH = 20
"""Records that are told at once, so that an answer is soon there."""
PAUSES_S = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Before each new try, the last for all later ones."""


class TrackerDelivery:
    """To one tracker."""

    def __init__(
        self,
        name: str,
        open_run: Callable[[str | None], Tracker],
        mark: Path,
        events: EventLog,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        """
        Args:
            name: of the tracker.
            open_run: goes on with the run that the tracker calls so, or begins one. Called in the
                thread, with the first record; it raises as `Tracker.send`.
            mark: file of how far it was told.
        """
        self._name, self._open_run, self._path, self._events = name, open_run, mark, events
        self._pauses_s = pauses_s
        self._changed = threading.Condition()
        self._waiting: deque[StepRecord] = deque()
        self._under_way = 0
        self._lost = 0
        self._is_ending = self._is_done = self._is_given_up = False
        self._before = DeliveryMark()
        self._is_away = self._has_refused = False
        self._thread: threading.Thread | None = None

    def put(self, record: StepRecord) -> None:
        """Tell it, some time later. Called by one thread; never waits for the tracker."""
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
        """No more records will come; `is_done`: the run is through."""
        with self._changed:
            self._is_ending, self._is_done = True, is_done
            self._changed.notify()

    def join(self, until_s: float) -> None:
        """Wait until all is told, or it is `until_s` by the monotonic clock; say what is not."""
        if self._thread is None:
            return
        self._thread.join(max(0.0, until_s - time.monotonic()))
        with self._changed:
            left = self._lost + self._under_way + len(self._waiting)
            if left:
                log.error("%s was not told %d records", self._name, left)
                self._events.emit("tracker_undelivered", tracker=self._name, records=left)
            self._is_given_up = True  # the events are about to be closed

    def _serve(self) -> None:
        try:
            self._deliver_all()
        except Exception as error:  # noqa: BLE001 (of a library, which no run is to end for)
            frames = "".join(traceback.format_tb(error.__traceback__))  # the rest may have secrets
            log.error("%s ended at\n%s", self._name, frames)
            self._say(f"{self._name} is told nothing any more: {_words(error)}")

    def _deliver_all(self) -> None:
        mark = self._before = read_mark(self._path)
        tracker: Tracker | None = None
        while batch := self._next():
            tries = 0
            while True:
                is_last_try = self._is_ending
                try:
                    tracker = tracker or self._opened(mark)
                    mark = self._send(tracker, batch, mark)
                    self._say_back()
                    break
                except TrackerRejectedError as error:
                    self._lose(len(batch), _words(error))
                    break
                except TrackerUnavailableError as error:
                    self._say_away(_words(error))
                    self._tell_lost(LIMIT)
                    if is_last_try:
                        return
                    self._pause(tries)
                    tries += 1
            self._under_way = 0
        if tracker is not None:
            self._close(tracker)

    def _send(
        self, tracker: Tracker, batch: Sequence[StepRecord], mark: DeliveryMark
    ) -> DeliveryMark:
        if new := [record for record in batch if not self._before.has(record)]:
            tracker.send(new)
            mark = self._keep(mark.after(new, tracker.run))
        return mark

    def _opened(self, mark: DeliveryMark) -> Tracker:
        tracker = self._open_run(mark.run)
        self._keep(DeliveryMark(tracker.run, mark.told))
        if tracker.note is not None:
            self._say(without_secrets(tracker.note, os.environ))
        return tracker

    def _keep(self, mark: DeliveryMark) -> DeliveryMark:
        try:
            write_mark(self._path, mark)
        except OSError as error:
            log.warning("%s may be told some steps twice later: %s", self._name, error)
        return mark

    def _close(self, tracker: Tracker) -> None:
        try:
            tracker.close(self._is_done)
        except (TrackerUnavailableError, TrackerRejectedError) as error:
            self._say(f"{self._name} may lack the end of this attempt: {_words(error)}")

    def _next(self) -> list[StepRecord]:
        """Records that wait; none once there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_ending)
            count = min(BATCH, len(self._waiting))
            self._under_way = count
            return [self._waiting.popleft() for _ in range(count)]

    def _pause(self, tries: int) -> None:
        """Until the next try; the last one is when the process ends."""
        pause_s = self._pauses_s[min(tries, len(self._pauses_s) - 1)]
        with self._changed:
            self._changed.wait_for(lambda: self._is_ending, pause_s)

    def _lose(self, count: int, why: str) -> None:
        """It does not take them. One word is enough where it takes nothing at all."""
        if not self._has_refused:
            self._has_refused = True
            self._say(f"{self._name} does not take what it is told: {why}")
        with self._changed:
            self._lost += count

    def _say_away(self, why: str) -> None:
        if not self._is_away:
            self._is_away = True
            self._say(f"{self._name} cannot be reached; records wait: {why}")

    def _say_back(self) -> None:
        if self._is_away:
            self._is_away = False
            log.info("%s is back", self._name)
            self._emit("tracker_back", tracker=self._name)
            self._tell_lost(1)

    def _tell_lost(self, at_least: int) -> None:
        """How many were dropped since that was told last, if so many were."""
        with self._changed:
            lost = self._lost
            if lost < at_least:
                return
            self._lost = 0
        log.warning("%s was not told %d records", self._name, lost)
        self._emit("tracker_undelivered", tracker=self._name, records=lost)

    def _say(self, what: str) -> None:
        log.warning(what)
        self._emit("degraded", what=what)

    def _emit(self, kind: str, **fields: object) -> None:
        with self._changed:
            if not self._is_given_up:
                self._events.emit(kind, **fields)


def _words(error: Exception) -> str:
    """One line, without secrets, which an error of a client may show."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return without_secrets(f"{type(error).__name__}: {lines[0] if lines else ''}", os.environ)[:160]
