"""TensorBoard files of a run, from its events: a process beside rank 0.

    python -m hpckit.trainer.metrics.tensorboard_curves EVENTS FOLDER </dev/null    # what they lack
    by now

Within a trainer, it would take the interpreter's lock from each step: TensorBoard computes its
checksums in Python. It ends when its standard input does, or its parent, and has then written all
that there is. What it has not, because it was killed too, is made up for by the next one: a file in
the folder says how far they are.
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
"""In the folder: bytes of the events that the files have."""
_POLL_S = 2.0
_IDLE = 10  # niceness: no step is to wait for it
_ABOUT = frozenset(("step", "generation", "attempt", "rank"))
_MORE = {"step": _ABOUT, "validated": _ABOUT | {"seconds"}}
"""Kinds of events that are records, with the fields that are none of their values."""


@dataclass(frozen=True)
class CurvePoint:
    """A record of a step."""

    step: int
    time_s: float
    values: Mapping[str, float]


def point_of(event: Event) -> CurvePoint | None:
    """What belongs into the files; None: nothing of this event."""
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
    """Files that follow the events of a run."""

    def __init__(self, events: Path, folder: Path) -> None:
        self._folder = folder
        from hpckit.trainer.metrics.tensorboard_file import (
            TensorBoardFile,  # which imports TensorBoard
        )

        self._told = bytes_written(folder)
        self._tail = EventTail(events, offset=self._told)
        self._scalars = TensorBoardFile(folder)
        self._begun: tuple[int, float] | None = None

    def follow(self) -> None:
        """Write what has come since the last call. Raises OSError."""
        before = self._told
        for event in self._tail.read():
            if event.kind == "training_started":
                self._begun = int(event.get("step", 0)), event.time
            elif (point := point_of(event)) is not None:
                self._write(point)
                self._told = self._tail.offset
        if self._told != before:
            self._scalars.flush()
            write_json(self._folder / MARK, {"bytes": self._told})

    def _write(self, point: CurvePoint) -> None:
        if self._begun is not None:
            self._scalars.restart(*self._begun)
            self._begun = None
        self._scalars.write(point.step, point.time_s, point.values)

    def close(self) -> None:
        """Raises OSError."""
        self._scalars.close()


def bytes_written(folder: Path) -> int:
    """Bytes of the events that the files have; 0 where that is not known: TensorBoard does without
    what is there twice."""
    found: Any = read_json(folder / MARK)
    told = found.get("bytes") if isinstance(found, dict) else None
    return told if isinstance(told, int) and told >= 0 else 0


def write_until(is_over: Callable[[], bool], events: Path, folder: Path) -> None:
    """Follow the events until `is_over`, which is asked over and over and may wait; training goes
    on without files that cannot be written."""
    try:
        curves, is_last = TensorBoardCurves(events, folder), False
        while not is_last:
            is_last = is_over()  # what was written before it is read once more
            curves.follow()
        curves.close()
    except OSError as error:
        what = f"no more TensorBoard files: {error}"
        log.error(what)
        with EventLog(events) as said:
            said.emit("degraded", what=what)


def main() -> None:
    """For `python -m`."""
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
