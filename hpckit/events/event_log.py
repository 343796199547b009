"""`events.jsonl` holds the events of a run, one JSON object per line. All reports are based on
their times.

The supervisor, the agents and the ranks of all nodes append to one file. Each line is one write to
a descriptor in append mode, under a POSIX record lock: append alone is not atomic on NFS, where the
lock also makes the client look up the file's true end. A line that a crash has truncated is
terminated by the next writer and skipped by readers.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checkpointing.event_file import append_line
from hpckit.events.clock_order import in_order
from hpckit.events.schema import Event as Event
from hpckit.events.schema import event_taking

log = logging.getLogger(__name__)

_CLOSED = -1
_STEP = b'"kind": "step"'  # as `EventLog` writes it; within a string, quotes are escaped
_YEAR_10000_S = 253_402_300_800  # Python's calendar cannot represent dates from then on


class EventLog:
    """Appends events; `common` fields (generation, node, rank, ...) are added to each of them."""

    def __init__(self, path: Path, **common: Any) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._common = common
        # the file lock does not exclude threads of one process
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        """Appends an event. Values have to be plain JSON; NaN and infinity are kept.

        An event that cannot be written, or that comes after `close`, is only logged, as a lost
        event must not end a run.
        """
        self._write({"time": event.time, "kind": event.kind, **self._common, **event.fields})

    def emit_kind(self, kind: str, **fields: Any) -> None:
        """Appends an event of any kind with the present time, as `emit` does. It is for the
        user's own kinds, and for callbacks such as `on_event` of a `Checkpointer`."""
        self._write({"time": round(time.time(), 6), "kind": kind, **self._common, **fields})

    def _write(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record)
        try:
            with self._lock:
                self._append(line)
        except OSError as error:
            log.error("an event is not written (%s): %s", error, line)

    def _append(self, line: str) -> None:
        if self._handle == _CLOSED:  # its number may be reused for another file
            log.warning("the log is closed, so this event is not written: %s", line)
            return
        if not append_line(self._handle, line):
            log.error("the disk is full, so this event is cut short: %s", line)

    def close(self) -> None:
        """Closes the log. Later events of other threads are not written."""
        with self._lock:
            handle, self._handle = self._handle, _CLOSED
            if handle != _CLOSED:
                os.close(handle)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventTail:
    """Reads events as they are appended, from the start of the file, its end, or an offset."""

    def __init__(self, path: Path, from_end: bool = False, offset: int = 0) -> None:
        """`offset` is that of another `EventTail` of the same file."""
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else offset
        self.torn = 0
        """Number of lines skipped so far because they hold no event."""

    @property
    def offset(self) -> int:
        """Offset in the file after the last event that was read."""
        return self._offset

    def read(self, *, with_steps: bool = True) -> Iterator[Event]:
        """Yields the events of complete lines that were appended since the last call.

        `with_steps`: False leaves out those of the kind "step", of which a long run has most, and
        does not parse them.
        """
        before = self.torn
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._offset += len(line)
                    if not with_steps and _STEP in line:
                        continue
                    found = _parse(line)
                    if isinstance(found, str):
                        self.torn += 1
                        if self.torn == before + 1:
                            log.warning("%s: skipped %s: %.80r", self._path, found, line)
                    else:
                        yield found
        except FileNotFoundError:
            return
        finally:
            if (more := self.torn - before - 1) > 0:
                log.warning("%s: skipped %d more lines that are not events", self._path, more)


def read_events(path: Path, *, with_steps: bool = True) -> list[Event]:
    """Returns all events of the file, ordered by `in_order`; an empty list if the file does not
    exist.

    Args:
        with_steps: as of `EventTail.read`.
    """
    return in_order(EventTail(path).read(with_steps=with_steps))


def _parse(line: bytes) -> Event | str:
    """Returns the event of a line, or what the line is instead."""
    try:
        fields = json.loads(line)
        event = event_taking(float(fields.pop("time")), str(fields.pop("kind")), fields)
        if 0 <= event.time < _YEAR_10000_S:
            return event
    except (ValueError, OverflowError, RecursionError, KeyError, AttributeError, TypeError):
        return "a torn line"
    return "an event without a time"
