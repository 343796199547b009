"""The events of a `Checkpointer` as lines of JSON in a file, which the environment names.

A launcher sets the variables, so that a program reports its checkpoints without a line of its own.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkpointing.events import OnEvent

logger = logging.getLogger(__name__)

FILE = "CHECKPOINTING_EVENTS"
"""Variable with the path of the file; it need not exist."""
FIELDS = "CHECKPOINTING_EVENT_FIELDS"
"""Variable with a JSON object of fields that each event has too."""


def writer_from_env(env: Mapping[str, str] = os.environ) -> OnEvent | None:
    """Returns a function that appends events to the file that `env` names, or None if it names
    none."""
    if not (path := env.get(FILE)):
        return None
    try:
        common = json.loads(env.get(FIELDS, "{}"))
    except ValueError as error:
        logger.warning("%s is not JSON, so events lack these fields: %s", FIELDS, error)
        common = {}
    return _EventWriter(Path(path), common if isinstance(common, dict) else {})


def append_line(handle: int, line: str) -> bool:
    """Appends a line to a file that is open in append mode, and returns whether all of it was
    written. A line that a crash has truncated is terminated first. The file is locked meanwhile, as
    appending alone is not atomic on NFS."""
    fcntl.lockf(handle, fcntl.LOCK_EX)
    try:
        size = os.fstat(handle).st_size
        is_torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        data = (b"\n" if is_torn else b"") + line.encode() + b"\n"
        return os.write(handle, data) == len(data)
    finally:
        fcntl.lockf(handle, fcntl.LOCK_UN)


class _EventWriter:
    """Appends events. An event that cannot be written is only logged, as it must not cost a
    checkpoint."""

    def __init__(self, path: Path, common: Mapping[str, Any]) -> None:
        self._path, self._common = path, common

    def __call__(self, kind: str, **fields: Any) -> None:
        record = {"time": round(time.time(), 6), "kind": kind, **self._common, **fields}
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            handle = os.open(self._path, flags, 0o644)
            try:
                is_whole = append_line(handle, json.dumps(record))
            finally:
                os.close(handle)
            if not is_whole:
                logger.warning(
                    "the event %s in %s is cut short: the disk is full", kind, self._path
                )
        except OSError as error:
            logger.warning("the event %s is not written to %s: %s", kind, self._path, error)
