"""Checks that the records of another user's run are that user's own.

A server shows what its user may read, to all who have the token. A run of another user may have
links in the place of its records, which would show a file that only the server's user may read.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from hpckit.rundir.directory import RunDir

_ROOT = 0


def foreign_record(run: RunDir) -> str | None:
    """Return why a run is not to be shown: one of its records is not its owner's, or no file. None:
    all are, or the run is of a user that is trusted.

    Raises:
        OSError: it cannot be looked at.
    """
    owner = _owner_to_check(run)
    if owner is None:
        return None
    numbers = run.submission_numbers()
    folders = [run.path, run.submissions, run.logs, run.evaluations]
    files = [run.events, run.verdict, run.fork, run.lock, run.logs / "supervisor.log"]
    if numbers:
        folders.append(run.submission(numbers[-1]))
        files.append(run.spec(numbers[-1]))
    for path in (*folders, *files):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        if found.st_uid != owner:
            return f"{path} is not a record of the run's owner, but of user {found.st_uid}"
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            return f"{path} is neither a file nor a folder"
    return None


def open_record(run: RunDir, path: Path) -> BinaryIO:
    """Open a file of a run for reading. It is checked after it was opened, so that it cannot be
    exchanged between.

    Raises:
        PermissionError: it is not to be shown, as in `foreign_record`.
        OSError: it cannot be opened.
    """
    owner = _owner_to_check(run)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe is not waited for
    found = os.fstat(handle)
    is_own = owner is None or found.st_uid == owner
    if is_own and stat.S_ISREG(found.st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise PermissionError(f"{path} is not a file of the run's owner")


def _owner_to_check(run: RunDir) -> int | None:
    """Return the user whose own the records have to be. None: a trusted one.

    Of a link to a run it is who has made the link.
    """
    owner = run.path.lstat().st_uid
    return None if owner in _trusted_users() else owner


def _trusted_users() -> tuple[int, ...]:
    """Return the users whose runs are not checked: nobody else can write there."""
    return _ROOT, os.getuid()
