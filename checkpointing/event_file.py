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


class _EventWriter:
    """Appends events. An event that cannot be written is only logged, as it must not cost a
    checkpoint."""

    def __init__(self, path: Path, common: Mapping[str, Any]) -> None:
        self._path, self._common = path, common

    def __call__(self, kind: str, **fields: Any) -> None:
        record = {"time": round(time.time(), 6), "kind": kind, **self._common, **fields}
        try:
            self._append(json.dumps(record).encode() + b"\n")
        except OSError as error:
            logger.warning("the event %s is not written to %s: %s", kind, self._path, error)

    def _append(self, line: bytes) -> None:
        """Appends a line under a record lock, as appending alone is not atomic on NFS."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        handle = os.open(self._path, flags, 0o644)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX)
            size = os.fstat(handle).st_size
            is_torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, (b"\n" if is_torn else b"") + line)
        finally:
            os.close(handle)
