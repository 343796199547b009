"""Checks before submission that a folder can be made and written to."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

_PROBE_BYTES = 1 << 20


def unwritable(key: str, folder: Path) -> list[str]:
    """Returns a problem if nothing can be written to the nearest existing folder at or above
    `folder`: it is none, its permissions or its file system forbid it, or the disk is full. The
    file that is written to find that out never has a name."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        return [f"{key}: {existing} is not a folder; {folder} cannot be made"]
    if _is_read_only(existing):
        return [f"{key}: {existing} is on a read-only file system; name a folder on another one"]
    if not os.access(existing, os.W_OK | os.X_OK):
        return [f"{key}: {existing} is not writable; {folder} cannot be made there"]
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free space there, or name" if full else "name"
        return [
            f"{key}: {folder} cannot be used: a file of 1 MiB cannot be written to {existing} "
            f"({error.strerror}); {remedy} a folder on another file system"
        ]
    return []


def _is_read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
