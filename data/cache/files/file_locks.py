"""Kernel locks that end with their process, even if it was forked in between."""

import errno
import fcntl
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data.durable_files import is_open_at

_LOOK_S = 0.002  # between two tries
_MARK_S = 1.0


class FileLock:
    """An exclusive `flock` on a file that exists only while a process holds or wants the lock.

    Created by `acquire` and `try_acquire`. The kernel frees it if the process dies.
    """

    def __init__(self, fd: int, path: Path) -> None:
        self._fd, self._path = fd, path
        _held.add(self)

    @classmethod
    def acquire(cls, path: Path, within_s: float) -> "FileLock":
        """Wait for the lock, at most `within_s`, since its holder may be stopped (SIGSTOP).

        Raises TimeoutError, and OSError, also where the file system has no locks.
        """
        until_s = time.monotonic() + within_s
        while (lock := cls.try_acquire(path)) is None:
            if time.monotonic() > until_s:
                problem = f"its holder has not released it for {within_s:.0f} s"
                raise TimeoutError(errno.ETIMEDOUT, problem, str(path))
            time.sleep(_LOOK_S)
        return lock

    @classmethod
    def try_acquire(cls, path: Path) -> "FileLock | None":
        """Return the lock, or None if another process has it or had it just now. Raises OSError."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_open_at(fd, path):
                return cls(fd, path)
        except BlockingIOError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def release(self) -> None:
        """Remove the file and free the lock."""
        if self._fd >= 0:
            try:
                self._path.unlink(missing_ok=True)
            finally:
                self.forget()

    def forget(self) -> None:
        """Close this process's descriptor without freeing the lock, which belongs to another
        process."""
        fd, self._fd = self._fd, -1
        _held.discard(self)
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_held: "weakref.WeakSet[FileLock]" = weakref.WeakSet()


def _after_fork() -> None:
    """Close the parent's locks in a forked child, which would otherwise hold them as long as it
    lives."""
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def in_use(fd: int) -> Iterator[bool]:
    """Return whether another reader has marked the open file `fd` as used; none can while this
    runs."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield True
        return
    try:
        yield False
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def mark_used(fd: int) -> None:
    """Mark the file as used until `fd` is closed or this process ends. Raises OSError.

    A process that checks for use blocks the mark for a moment. One that was stopped just then is
    not waited for: the file stays unmarked, and readable even if it is removed.
    """
    until_s = time.monotonic() + _MARK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until_s:
                return
        time.sleep(_LOOK_S)
