"""The page cache, emptied of what a benchmark is to read from the disk."""

from __future__ import annotations

import os
from pathlib import Path


def forget(folder: Path) -> None:
    """Take all files in a folder and below out of the page cache."""
    os.sync()  # what is not on the disk yet would stay
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
