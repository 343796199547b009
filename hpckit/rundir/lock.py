"""The run lock: a kernel lock on a run directory, which is released as soon as its holder's process
ends."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hpckit.system.private_folders import make_private

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LockOwner:
    """The holder of a run lock."""

    pid: int
    host: str
    since: float
    """Seconds since the epoch."""
    what: str

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{self.what}, process {self.pid} on {self.host}, since {since}"


class RunHeldError(RuntimeError):
    """Raised if another process holds the run lock."""

    def __init__(self, path: Path, owner: LockOwner | None) -> None:
        super().__init__(f"{path.parent} is in use by {owner or 'an unknown process'}")
        self.owner = owner


class RunLock:
    """Holds a run lock exclusively while the `with` block lasts.

    Entry waits up to `wait_s` seconds: a moment is enough if only a query (`holder`) or an ending
    process can hold the lock.

    Raises:
        RunHeldError: on entry, if the lock is held; names the owner.
    """

    def __init__(self, path: Path, what: str, wait_s: float = 1.0) -> None:
        self._path = path
        self._what = what
        self._wait_s = wait_s
        self._handle = -1

    def __enter__(self) -> RunLock:
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + self._wait_s
        while not _try_lock(self._handle):
            if time.monotonic() > deadline:
                os.close(self._handle)
                raise RunHeldError(self._path, read_owner(self._path))
            time.sleep(0.05)
        me = LockOwner(os.getpid(), socket.gethostname(), time.time(), self._what)
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, json.dumps(asdict(me)).encode(), 0)
        except OSError as error:  # the kernel holds the lock all the same
            log.warning("%s does not say who holds it: %s", self._path, error)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the next owner overwrites it
            os.ftruncate(self._handle, 0)
        os.close(self._handle)


@contextmanager
def hold_all(paths: Iterable[Path], what: str) -> Iterator[None]:
    """Holds the locks at `paths`, taken in their order, while the block lasts. Missing folders are
    made; that of the first lock, the run directory, is for this user alone.

    Raises:
        RunHeldError: another process holds one of them.
    """
    with ExitStack() as stack:
        for number, path in enumerate(paths):
            if number:  # a store's folder, which follows the umask
                path.parent.mkdir(parents=True, exist_ok=True)
            else:
                make_private(path.parent)
            stack.enter_context(RunLock(path, what))
        yield


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_owner(path: Path) -> LockOwner | None:
    """Returns the holder by the lock file, which may have ended since."""
    try:
        return LockOwner(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        return None


def holder(path: Path) -> LockOwner | None:
    """Returns the process that holds the lock at `path` now, or None."""
    try:
        # others may only read it; a pipe, which no release makes, is not waited for
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return read_owner(path) or LockOwner(0, "?", 0.0, "an unknown process")
    finally:
        os.close(handle)
    return None
