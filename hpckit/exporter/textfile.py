"""The file of a node in the folder that node_exporter's textfile collector reads."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from hpckit.system.atomic_files import write_text

STALE_S = 3600.0
"""Seconds without a write after which a file belongs to an agent that was killed."""
_PREFIX, _SUFFIX = "hpckit-", ".prom"


def file_of(folder: Path, run: str, node: int) -> Path:
    """Returns the file of node `node` of the run."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", run)
    return folder / f"{_PREFIX}{plain}-n{node}{_SUFFIX}"


def publish(path: Path, text: str) -> None:
    """Writes `text` to `path` atomically and readable for all, as node_exporter is another user.
    The file need not survive the node, so it is not synced to disk. Raises OSError."""
    write_text(path, text, mode=0o644, is_durable=False)


def remove_stale(folder: Path, now_s: float | None = None) -> None:
    """Removes files of this user that killed agents left; `now_s` is in seconds since the epoch.
    Raises OSError if there is no such folder."""
    now_s = time.time() if now_s is None else now_s
    for path in [*folder.glob(f"{_PREFIX}*{_SUFFIX}"), *folder.glob(f".{_PREFIX}*{_SUFFIX}.*")]:
        with suppress(OSError):  # another agent removed it first
            about = path.lstat()
            if about.st_uid == os.getuid() and now_s - about.st_mtime > STALE_S:
                path.unlink()
