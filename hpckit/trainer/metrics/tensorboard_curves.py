"""Writes TensorBoard files of a run from its events, in a process beside rank 0.

    python -m hpckit.trainer.metrics.tensorboard_curves EVENTS FOLDER </dev/null    # once

Within a trainer, it would take Python's interpreter lock from each step, since TensorBoard computes
checksums in Python. The process ends when its standard input or its parent does, after writing all
events that there are. If it is killed too, the next one writes what is missing: a file in the
folder holds the offset in the events up to which they were written.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpckit.events.event_log import Event, EventLog, EventTail
from hpckit.system.atomic_files import read_json, write_json

log = logging.getLogger(__name__)

MARK = "told.json"
"""File in the folder with the number of bytes of the events that were written."""
_POLL_S = 2.0
_IDLE = 10  # niceness, so that no step waits for it
_ABOUT = frozenset(("step", "generation", "attempt", "rank"))
_MORE = {"step": _ABOUT, "validated": _ABOUT | {"seconds"}}
"""Kinds of events that are records, with the fields that are not values."""


@dataclass(frozen=True)
class CurvePoint:
    """A record of a step."""

    step: int
    time_s: float
    values: Mapping[str, float]


def point_of(event: Event) -> CurvePoint | None:
    """Return the record in an event; None: the event is none."""
    if event.kind not in _MORE:
        return None
    values = {
        name: float(value)
        for name, value in event.fields.items()
        if name not in _MORE[event.kind] and isinstance(value, int | float)
    }
    step = event.get("step")
    return CurvePoint(step, event.time, values) if isinstance(step, int) else None


class TensorBoardCurves:
    """TensorBoard files that follow the events of a run."""

    def __init__(self, events: Path, folder: Path) -> None:
        self._folder = folder
        from hpckit.trainer.metrics.tensorboard_file import (
            TensorBoardFile,  # imports TensorBoard
        )

        self._written = bytes_written(folder)
        self._tail = EventTail(events, offset=self._written)
        self._scalars = TensorBoardFile(folder)
        self._begun: tuple[int, float] | None = None

    def follow(self) -> None:
        """Write the events since the last call. Raises OSError."""
        before = self._written
        for event in self._tail.read():
            if event.kind == "training_started":
                self._begun = int(event.get("step", 0)), event.time
            elif (point := point_of(event)) is not None:
                self._write(point)
                self._written = self._tail.offset
        if self._written != before:
            self._scalars.flush()
            write_json(self._folder / MARK, {"bytes": self._written})

    def _write(self, point: CurvePoint) -> None:
        if self._begun is not None:
            self._scalars.restart(*self._begun)
            self._begun = None
        self._scalars.write(point.step, point.time_s, point.values)

    def close(self) -> None:
        """Close the file. Raises OSError."""
        self._scalars.close()


def bytes_written(folder: Path) -> int:
    """Return the number of bytes of the events that were written; 0 if it is not known, since
    TensorBoard ignores duplicates."""
    found: Any = read_json(folder / MARK)
    count = found.get("bytes") if isinstance(found, dict) else None
    return count if isinstance(count, int) and count >= 0 else 0


def write_until(is_over: Callable[[], bool], events: Path, folder: Path) -> None:
    """Follow the events until `is_over` returns true, which is called repeatedly and may wait. If
    files cannot be written, training continues without them."""
    try:
        curves, is_last = TensorBoardCurves(events, folder), False
        while not is_last:
            is_last = is_over()  # what was written before is still read
            curves.follow()
        curves.close()
    except OSError as error:
        what = f"no more TensorBoard files: {error}"
        log.error(what)
        with EventLog(events) as event_log:
            event_log.emit("degraded", what=what)


def main() -> None:
    """Run as a program, for `python -m`."""
    events, folder = (Path(argument) for argument in sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Slurm's, to all processes: the end comes by stdin
    os.nice(_IDLE)
    parent = os.getppid()

    def is_over() -> bool:
        return bool(select.select([sys.stdin], [], [], _POLL_S)[0]) or os.getppid() != parent

    write_until(is_over, events, folder)


if __name__ == "__main__":
    main()
