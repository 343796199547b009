"""The TensorBoard file of one folder."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

_BEGUN = re.compile(r"events\.out\.tfevents\.(\d+)\.")
_VERSION = "brain.Event:2"


class TensorBoardFile:
    """One file, which is created with the first record. Methods raise OSError.

    A record is one entry of the file, not one per value as with torch's SummaryWriter, whose queue
    is shorter than a record, so that each record waits for the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: RecordWriter | None = None

    def restart(self, step: int, time_s: float) -> None:
        """Mark the begin of an attempt that resumed after `step` steps: later steps that the
        previous attempt recorded do not count."""
        start = SessionLog(status=SessionLog.START)
        self._add(Event(wall_time=time_s, step=step + 1, session_log=start))

    def write(self, step: int, time_s: float, record: Mapping[str, float]) -> None:
        """Write the scalars of one step with a time in seconds since the epoch."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in record.items()]
        self._add(Event(wall_time=time_s, step=step, summary=Summary(value=values)))

    def _add(self, entry: Event) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = RecordWriter(_latest_file(self._folder, time.time()).open("xb"))
            self._add(Event(wall_time=entry.wall_time, file_version=_VERSION))
        self._file.write(entry.SerializeToString())

    def flush(self) -> None:
        """Flush the file to disk."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        if self._file is not None:
            self._file.close()


def _latest_file(folder: Path, now_s: float) -> Path:
    """Create a file that TensorBoard reads after those that exist: it sorts them by their names,
    which begin with a time in seconds. Two attempts may begin within one second, or a clock may be
    behind."""
    begun = [int(found[1]) for path in folder.iterdir() if (found := _BEGUN.match(path.name))]
    second = max(int(now_s), *(one + 1 for one in begun), 0)
    return folder / f"events.out.tfevents.{second:010d}.{socket.gethostname()}.{os.getpid()}.0"
