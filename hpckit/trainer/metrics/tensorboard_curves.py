"""The program that writes the TensorBoard files of a run from its events, in a process beside rank
0.

    python -m hpckit.trainer.metrics.tensorboard_curves EVENTS FOLDER </dev/null    # once

TensorBoard computes checksums in Python, for which each step would wait if a thread of the trainer
did this. The process writes all events and ends when its standard input or its parent ends. If it
is killed, the next one writes what is missing: a file in the folder holds the offset in the events
up to which they were written.
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
from hpckit.events.schema import Degraded, DegradedSubject
from hpckit.system.atomic_files import read_json, write_json

log = logging.getLogger(__name__)

MARK = "told.json"
"""Name of the file in the folder that holds the number of bytes of the events that were written."""
_POLL_S = 2.0
_NICENESS = 10  # so that no step waits for this process
_COMMON_FIELDS = frozenset(("step", "generation", "attempt", "rank"))
_RECORDS = {"step": _COMMON_FIELDS, "validated": _COMMON_FIELDS | {"seconds"}}
"""The kinds of events that are records, with the fields that are not values."""


@dataclass(frozen=True)
class CurvePoint:
    """The values of a step in TensorBoard."""

    step: int
    time_s: float
    values: Mapping[str, float]


def point_of(event: Event) -> CurvePoint | None:
    """Return the values in an event; None if the event is not a record."""
    if event.kind not in _RECORDS:
        return None
    values = {
        name: float(value)
        for name, value in event.fields.items()
        if name not in _RECORDS[event.kind] and isinstance(value, int | float)
    }
    step = event.get("step")
    return CurvePoint(step, event.time, values) if isinstance(step, int) else None


class TensorBoardCurves:
    """TensorBoard files that follow the events of a run."""

    def __init__(self, events: Path, folder: Path) -> None:
        self._folder = folder
        from hpckit.trainer.metrics.tensorboard_file import TensorBoardFile  # needs TensorBoard

        self._written = bytes_written(folder)
        self._tail = EventTail(events, offset=self._written)
        self._scalars = TensorBoardFile(folder)
        self._restart: tuple[int, float] | None = None

    def follow(self) -> None:
        """Write the events since the last call. Raises OSError."""
        before = self._written
        for event in self._tail.read():
            if event.kind == "training_started":
                self._restart = int(event.get("step", 0)), event.time
            elif (point := point_of(event)) is not None:
                self._write(point)
                self._written = self._tail.offset
        if self._written != before:
            self._scalars.flush()
            write_json(self._folder / MARK, {"bytes": self._written})

    def _write(self, point: CurvePoint) -> None:
        if self._restart is not None:
            self._scalars.restart(*self._restart)
            self._restart = None
        self._scalars.write(point.step, point.time_s, point.values)

    def close(self) -> None:
        """Close the file. Raises OSError."""
        self._scalars.close()


def bytes_written(folder: Path) -> int:
    """Return the number of bytes of the events that were written to the files in `folder`; 0 if it
    is not known, since TensorBoard ignores duplicates."""
    found: Any = read_json(folder / MARK)
    count = found.get("bytes") if isinstance(found, dict) else None
    return count if isinstance(count, int) and count >= 0 else 0


def write_until(is_over: Callable[[], bool], events: Path, folder: Path) -> None:
    """Follow the events until `is_over`, which is called repeatedly and may wait, returns true. If
    the files cannot be written, this is reported, and training continues without them."""
    try:
        curves, is_last = TensorBoardCurves(events, folder), False
        while not is_last:
            is_last = is_over()  # events that were written before are still read
            curves.follow()
        curves.close()
    except OSError as error:
        what = f"TensorBoard files are no longer written: {error}"
        log.error(what)
        with EventLog(events) as event_log:
            event_log.emit(Degraded(subject=DegradedSubject.TENSORBOARD, what=what))


def main() -> None:
    """Run as a program, for `python -m`."""
    events, folder = (Path(argument) for argument in sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        # Slurm signals all processes; this one ends when its standard input ends
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    parent = os.getppid()

    def is_over() -> bool:
        return bool(select.select([sys.stdin], [], [], _POLL_S)[0]) or os.getppid() != parent

    write_until(is_over, events, folder)


if __name__ == "__main__":
    main()
