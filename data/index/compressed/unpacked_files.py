"""The unpacked files in a cache: which of them are in use by a process, and their removal.

A file is in use while a dataset that was opened with it exists. The dataset has a list of its files
in a file that is locked, so that the kernel frees them if its process dies; forked processes hold
the lock, too.
"""

import fcntl
import os
import stat
import time
from collections import Counter
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

from data.durable_files import locked

FOLDER = "unpacked"
"""The folder of unpacked files, in that of the cache."""

_LOCK = ".lock"
_USES = f".uses{_LOCK}"
_CHANGES = f".changes{_LOCK}"
_INDEX = ".index"  # of a file, beside it
_TEMPORARY = ".tmp"
_PART = ".part"  # a growing download of the cache
_LEFT_S = 3600.0  # age at which a file that is not finished counts as left by a killed process
_PATIENCE_S = 30.0  # as of the ledger of a cache


class UnpackedFile(NamedTuple):
    """An unpacked file that no process uses, with its index."""

    name: str
    bytes: int
    used_s: float
    """The Unix time at which a dataset was last opened with it."""


class FileUses:
    """The unpacked files that one dataset uses, until it is closed or collected."""

    def __init__(self) -> None:
        self._fd = -1
        self._path: Path | None = None

    def add(self, made: Path) -> bool:
        """Note the file as used, before it is looked for, and return whether it is there; nothing
        removes it from now on. Raises OSError."""
        with changes(made.parent):
            if self._fd < 0:
                name = f".{os.getpid()}-{os.urandom(8).hex()}{_USES}"
                self._path = made.parent / name
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._fd = os.open(self._path, flags, 0o600)
                with suppress(OSError):  # a file system without locks: the file alone says it
                    fcntl.flock(self._fd, fcntl.LOCK_EX)
            os.write(self._fd, made.name.encode(errors="surrogateescape") + b"\n")
            with suppress(FileNotFoundError):
                os.utime(made)
                return True
            return False

    def close(self) -> None:
        """Use none of them any more. A forked process may go on to."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)  # the next one that looks for unused files removes it if it was the last

    def __del__(self) -> None:
        self.close()


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files in a folder, also of those that are being written, and of what
    is reserved for downloads."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_LOCK):
                continue
            with suppress(FileNotFoundError):  # another process has just renamed it
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    is_part = entry.name.endswith(_PART)
                    reserved = status.st_blocks * 512 if is_part else 0
                    total += max(status.st_size, reserved)
    return total


def unused(folder: Path) -> list[UnpackedFile]:
    """Return the files of a folder of unpacked files that no process uses, and those that a killed
    process has left unfinished; remove the lists of processes that have ended. Raises OSError."""
    if not folder.is_dir():
        return []
    with changes(folder):  # a list that is just being made is not locked yet
        used = _used(folder)
    sizes, times, left_s = Counter[str](), dict[str, float](), time.time() - _LEFT_S
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name.removesuffix(_INDEX)
            is_temporary = name.startswith(".")
            if name in used or (is_temporary and not name.endswith(_TEMPORARY)):
                continue
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if is_temporary and status.st_mtime > left_s:
                    continue  # it may still be written
                sizes[name] += status.st_size
                times[name] = max(status.st_mtime, times.get(name, 0.0))
    return [UnpackedFile(name, size, times[name]) for name, size in sizes.items()]


def remove(folder: Path, name: str) -> bool:
    """Remove a file unless a process uses it by now; returns whether it is removed. Raises
    OSError."""
    with changes(folder):
        if name in _used(folder):
            return False
        for each in (name, f"{name}{_INDEX}"):
            (folder / each).unlink(missing_ok=True)
        return True


def changes(folder: Path) -> AbstractContextManager[bool]:
    """Return a lock: nobody else notes a use, or removes files, of this folder of unpacked files.
    Raises OSError; TimeoutError if a process that makes no progress, such as a stopped one, has
    it."""
    return locked(folder / _CHANGES, _PATIENCE_S)


def _used(folder: Path) -> set[str]:
    names: set[str] = set()
    for path in folder.glob(f".*{_USES}"):
        with suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:  # locked, or the file system has no locks
                names.update(file.read().decode(errors="surrogateescape").split("\n"))
                continue
            path.unlink(missing_ok=True)
    return names
