"""TensorBoard files of one folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class Scalars:
    """One file, from the first record on. Methods raise OSError.

    A record is one entry of the file, not one a value as with torch's SummaryWriter: its queue is
    shorter than a record, so that each one waits for the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: EventFileWriter | None = None

    def restart(self, step: int, time_s: float) -> None:
        """A life begins that has finished `step` steps: what one before it wrote of later ones does
        not count."""
        start = SessionLog(status=SessionLog.START)
        self._add(Event(wall_time=time_s, step=step + 1, session_log=start))

    def write(self, step: int, time_s: float, record: Mapping[str, float]) -> None:
        """Scalars of one step, of that time since the epoch."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in record.items()]
        self._add(Event(wall_time=time_s, step=step, summary=Summary(value=values)))

    def _add(self, entry: Event) -> None:
        self._file = self._file or EventFileWriter(str(self._folder))
        self._file.add_event(entry)

    def flush(self) -> None:
        """Write out what is buffered."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """The same, for the last time."""
        if self._file is not None:
            self._file.close()
