"""Folders that only their owner may change, because their content (a code snapshot) is executed."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")


def make_private(folder: Path) -> None:
    """Makes `folder` unless it exists, with no access for other users, whatever the umask is."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)


def folder_problem(folder: Path, *, is_job: bool) -> str | None:
    """Returns why a run cannot use `folder`, or None if it can.

    Args:
        is_job: whether a Slurm job uses it; Slurm gives '%' a meaning of its own.
    """
    name = str(folder)
    if _CONTROL_CHARACTERS.search(name):
        return f"{name!r} has a line break or another control character in its name"
    if ":" in name:
        return f"{folder} has a ':' in its name, which separates the folders of Python's path"
    if is_job and "%" in name:
        return f"{folder} has a '%' in its name, which Slurm replaces in names"
    if not folder.exists():
        return None
    found = folder.stat()
    if found.st_uid != os.getuid():
        return (
            f"{folder} belongs to user {found.st_uid}, whose code would be run: choose another "
            "folder"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to {folder} and change the code that is run: chmod go-w it"
    return None
