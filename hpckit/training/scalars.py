"""TensorBoard files, which training goes on without if they cannot be written."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpckit.run.events import EventLog

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

log = logging.getLogger(__name__)


class Scalars:
    """Files in one folder, from the first record on: until then nothing is imported or opened,
    which takes about half a second that the first step need not wait for.

    A record is one entry of the file, not one a value as with torch's SummaryWriter: its queue is
    shorter than a record, so that each one waits for the disk.
    """

    def __init__(self, folder: Path, events: EventLog, at: int) -> None:
        """`at`: steps finished; what a life before this one wrote of later ones does not count."""
        self._folder, self._events, self._at = folder, events, at
        self._writer: EventFileWriter | None = None
        self._is_dropped = False

    def write(self, step: int, record: Mapping[str, float]) -> None:
        """Scalars of one step."""
        if self._is_dropped:
            return
        try:
            writer = self._writer or self._open()
            writer.add_event(_entry(step, record))
        except OSError as error:
            self._drop(error)

    def close(self) -> None:
        """Write out what is buffered."""
        try:
            if self._writer is not None:
                self._writer.close()
        except OSError as error:
            self._drop(error)

    def _open(self) -> EventFileWriter:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(self._folder))
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=self._at + 1, session_log=start))
        return self._writer

    def _drop(self, error: OSError) -> None:
        """Go on without: the events have it all."""
        self._writer, self._is_dropped = None, True
        log.error("no more TensorBoard files: %s", error)
        self._events.emit("degraded", what=f"no more TensorBoard files: {error}")


def _entry(step: int, record: Mapping[str, float]) -> Event:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in record.items()]
    return Event(wall_time=time.time(), step=step, summary=Summary(value=values))
