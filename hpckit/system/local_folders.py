"""The folders that a run reads from and writes to, on whichever machine."""

from __future__ import annotations

import re
from pathlib import Path

from checkpointing import local_folder

_PATTERN = frozenset("*?[{")
RUN_IN_STORE = re.compile(r"(.+?)/+runs/+([^/]+)(?:/+steps)?/*")
"""A run in a store: the store and the name of the run."""


def data_folder(shards: str) -> Path | None:
    """The folder that holds `shards`, a folder, a tar or a pattern; None if it is elsewhere."""
    folder = local_folder(shards)
    if folder is None:
        return None
    for part in (*reversed(folder.parents), folder):
        if _PATTERN & set(part.name):
            return part.parent
    return folder.parent if folder.suffix == ".tar" else folder


def nearest(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists.

    Raises:
        OSError: it cannot be told.
    """
    for folder in (path, *path.parents):
        try:
            folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        return folder
    return path
