"""Folders and files on the node's own disk that only the user can access. It imports no numpy, so
that a process that only needs such a folder starts quickly."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from checkpointing.errors import ServiceError
from checkpointing.storage.posix import durable_files as files
from checkpointing.storage.posix.syscalls import Syscalls


class PrivateFiles(Syscalls):
    """File operations that create files which only the user can access, whatever the umask."""

    def create(self, path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def make(path: Path) -> None:
    """Create a private folder durably.

    Raises:
        OSError: it cannot be created.
        ServiceError: as `check`, or its parent is missing.
    """
    if not exists(path):
        if not path.parent.is_dir():
            raise ServiceError(
                f"there is no directory {path.parent}: create it, or choose another one for local "
                "snapshots"
            )
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        with suppress(PermissionError):  # a folder that may be passed through but not read
            files.fsync_dir(PrivateFiles(), str(path.parent))
    check(path)


def check(path: Path) -> None:
    """Check that a folder is private.

    Raises:
        OSError: it does not exist.
        ServiceError: it belongs to another user, is open to others, or is not a folder.
    """
    if not is_private(path):
        raise ServiceError(
            f"{path} must be a directory of user {os.getuid()} with mode 0700 (not a link): "
            "chmod or remove it, or choose another one for local snapshots"
        )


def is_private(path: Path) -> bool:
    """Returns whether the path is a folder, and not a link to one, that only this user can access.

    Raises:
        OSError: it does not exist.
    """
    found = path.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_own and not found.st_mode & 0o077


def exists(path: Path) -> bool:
    return os.path.lexists(path)
