"""The thread that writes step records, since a write to a file on the network, with its lock, may
take milliseconds, for which no step should wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue

from hpckit.events.event_log import EventLog
from hpckit.events.schema import event_of
from hpckit.trainer.metrics.tensorboard_process import TensorBoardProcess
from hpckit.trainer.trackers.tracker_builder import close_all
from hpckit.trainer.trackers.tracker_delivery import TrackerDelivery
from hpckit.trainer.trackers.tracker_interface import StepRecord

_Item = tuple[StepRecord, Mapping[str, float]] | threading.Event | None
"""A record with further fields of its event, an event that is set once all records before it are
written, or None at the end."""


class StepRecordWriter:
    """Writes records to events and trackers, in order, by one thread. Another process writes
    TensorBoard files from the events."""

    def __init__(
        self, events: EventLog, tensorboard: Path, trackers: Sequence[TrackerDelivery] = ()
    ) -> None:
        self._trackers = trackers
        self._events, self._curves = events, TensorBoardProcess(events, tensorboard)
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="records", daemon=True)
        self._thread.start()

    def write(self, kind: str, step: int, values: Mapping[str, float], **more: float) -> None:
        """Queue a record of `values` with the present time; its event has the fields `more`,
        too."""
        self._queue.put((StepRecord(kind, step, time.time(), values), more))

    def flush(self) -> None:
        """Wait until all records are written.

        This is called before a save, so that the records of saved steps exist even if the process
        is killed. It raises the error by which a record could not be written.
        """
        written = threading.Event()
        self._queue.put(written)
        written.wait()
        if self._error is not None:
            raise self._error

    def close(self, is_done: bool = False) -> None:
        """Write all records and end the thread; `is_done`: the run has ended, not just this
        attempt."""
        self._queue.put(None)
        self._thread.join()
        self._curves.end(is_done)
        close_all(self._trackers, is_done)

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                self._write(*item)
            except Exception as error:  # noqa: BLE001 (`flush` raises it)
                self._error = error

    def _write(self, record: StepRecord, more: Mapping[str, float]) -> None:
        fields = {"step": record.step, **more, **record.values}
        self._events.emit(event_of(record.time, record.kind, fields))
        self._curves.ensure()
        for tracker in self._trackers:
            tracker.put(record)
