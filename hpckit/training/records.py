"""Records of steps, written down beside training: a file on the network, and its lock, may take
milliseconds each time, which no step has to wait for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from hpckit.run.events import EventLog
from hpckit.training.scalars import Scalars
from hpckit.training.trackers.building import close_all
from hpckit.training.trackers.delivery import Delivery
from hpckit.training.trackers.tracker import Record


class Records:
    """To the events, TensorBoard files and trackers, in the order in which they come, by one
    thread."""

    def __init__(
        self, events: EventLog, tensorboard: Path, at: int, trackers: Sequence[Delivery] = ()
    ) -> None:
        """`at`: as of `Scalars`."""
        self._trackers = trackers
        self._events, self._scalars = events, Scalars(tensorboard, events, at)
        self._thread = ThreadPoolExecutor(1, "records")
        self._last: Future[None] | None = None

    def write(self, kind: str, step: int, values: Mapping[str, float], **more: float) -> None:
        """An event, of now, with `values` and `more`; and scalars, of `values` alone."""
        now_s = time.time()

        def write() -> None:
            self._events.emit(kind, time=now_s, step=step, **more, **values)
            self._scalars.write(step, values)
            for tracker in self._trackers:
                tracker.put(Record(kind, step, now_s, values))

        self._last = self._thread.submit(write)

    def flush(self) -> None:
        """Wait until all of them are written. What a save makes durable is told before, whoever is
        killed then."""
        if self._last is not None:
            self._last.result()

    def close(self, is_done: bool = False) -> None:
        """`is_done`: the run is through, not just this attempt."""
        self.flush()
        self._thread.shutdown()
        self._scalars.close()
        close_all(self._trackers, is_done)
