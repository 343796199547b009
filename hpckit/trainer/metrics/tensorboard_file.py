"""The TensorBoard file that an attempt writes to a folder."""

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

_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\.")
_VERSION = "brain.Event:2"


class TensorBoardFile:
    """A file that is created with the first record. All methods may raise OSError.

    A record is one entry of the file. torch's SummaryWriter writes an entry for each value, and its
    queue is shorter than a record, so that each record would wait for the disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: RecordWriter | None = None

    def restart(self, step: int, time_s: float) -> None:
        """Mark the begin of an attempt that resumed after `step` steps, by which TensorBoard drops
        later steps of the previous attempt."""
        start = SessionLog(status=SessionLog.START)
        self._add(Event(wall_time=time_s, step=step + 1, session_log=start))

    def write(self, step: int, time_s: float, record: Mapping[str, float]) -> None:
        """Write the values of a step, with its time in seconds since the epoch."""
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
    """Return the path of a new file that TensorBoard reads after the present ones.

    TensorBoard sorts files by their names, which begin with a time in seconds. This time is made
    larger than all others, since two attempts may begin within a second, and clocks may differ.
    """
    seconds = [int(found[1]) for path in folder.iterdir() if (found := _NAME.match(path.name))]
    second = max(int(now_s), *(each + 1 for each in seconds), 0)
    return folder / f"events.out.tfevents.{second:010d}.{socket.gethostname()}.{os.getpid()}.0"
