"""Durable, atomic writing and locking of local files."""

import errno
import fcntl
import logging
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_log = logging.getLogger(__name__)

_LOOK_S = 0.002  # between two tries to lock a file within some time


def fsync_path(path: Path) -> None:
    """Make a file's bytes, or a folder's entries, durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` under a temporary name, fsync, and rename it to `path`. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_path(path.parent)


@contextmanager
def locked(path: Path, within_s: float | None = None) -> Iterator[bool]:
    """Hold an exclusive kernel lock on the file `path`, which is made and removed as needed.

    Waits for the lock; the kernel frees it if the holder dies. Yields False, with a warning, on a
    file system without locks (Lustre mounted without `flock`).

    Args:
        within_s: the most seconds to wait, as the holder may be stopped (SIGSTOP); None: no limit.

    Raises OSError; TimeoutError if the holder has not released it by then.
    """
    fd, held = _acquire(path, within_s)
    try:
        yield held
    finally:
        if held:
            path.unlink(missing_ok=True)
            fcntl.flock(fd, fcntl.LOCK_UN)  # a process that was forked meanwhile has it, too
        os.close(fd)


def _acquire(path: Path, within_s: float | None) -> tuple[int, bool]:
    until_s = None if within_s is None else time.monotonic() + within_s
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(fd, until_s)
        except BlockingIOError:
            os.close(fd)
            problem = f"its holder has not released it for {within_s:.0f} s"
            raise TimeoutError(errno.ETIMEDOUT, problem, str(path)) from None
        except OSError as error:
            _log.warning("%s: cannot lock it (%s), continuing without a lock", path, error)
            return fd, False
        if is_open_at(fd, path):
            return fd, True
        os.close(fd)  # the last holder removed the file in the meantime: lock the new one


def _lock(fd: int, until_s: float | None) -> None:
    """Lock a file. Raises BlockingIOError if another process has it until then; OSError."""
    if until_s is None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        return
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise
        time.sleep(_LOOK_S)


def is_open_at(fd: int, path: Path) -> bool:
    """Return whether the open file `fd` is the one that `path` names now."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
