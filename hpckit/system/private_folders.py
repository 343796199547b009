"""Folders whose content is run, as a snapshot of code is: nobody else may change them."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

_ODD = re.compile(r"[\x00-\x1f\x7f]")


def make_private(folder: Path) -> None:
    """Make `folder`, closed to other users whatever the umask, where it is not there yet."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)


def folder_problem(folder: Path, *, is_job: bool) -> str | None:
    """Why a run cannot live in `folder`; None if it can.

    Args:
        is_job: it is a job of Slurm, which has a meaning of its own for '%'.
    """
    name = str(folder)
    if _ODD.search(name):
        return f"{name!r} has a line break or another control character in its name"
    if ":" in name:
        return f"{folder} has a ':' in its name, at which Python's path is split"
    if is_job and "%" in name:
        return f"{folder} has a '%' in its name, after which Slurm puts numbers"
    if not folder.exists():
        return None
    found = folder.stat()
    if found.st_uid != os.getuid():
        return f"{folder} belongs to user {found.st_uid}, whose code would be run: choose another"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write in {folder}, and so change the code that is run: chmod go-w it"
    return None
