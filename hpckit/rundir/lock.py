"""One owner per run directory, by a kernel lock: it is gone the moment its holder is."""

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
    """Who holds a run."""

    pid: int
    host: str
    since: float
    """Seconds since the epoch."""
    what: str

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{self.what}, process {self.pid} on {self.host}, since {since}"


class RunHeldError(RuntimeError):
    """Somebody else holds the run."""

    def __init__(self, path: Path, owner: LockOwner | None) -> None:
        super().__init__(f"{path.parent} is in use by {owner or 'an unknown process'}")
        self.owner = owner


class RunLock:
    """Exclusive hold of a run, while the `with` block lasts.

    Entry waits up to `wait_s` seconds: a moment is enough where only a look (`holder`) or a process
    on its way out can be in the way.

    Raises:
        RunHeldError: on entry, naming the owner, where the run is held.
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
        except OSError as error:  # it holds all the same, by the kernel
            log.warning("%s does not say who holds it: %s", self._path, error)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # who comes next writes over it
            os.ftruncate(self._handle, 0)
        os.close(self._handle)


@contextmanager
def hold_all(paths: Iterable[Path], what: str) -> Iterator[None]:
    """Hold the locks at `paths`, in their order, while the block lasts; folders are made, the
    first one, the run's, for this user alone.

    Raises:
        RunHeldError: one of them is held by somebody else.
    """
    with ExitStack() as stack:
        for number, path in enumerate(paths):
            if number:  # a store's, which obeys the umask
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
    """What the lock file says of its holder, who may be gone since."""
    try:
        return LockOwner(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        return None


def holder(path: Path) -> LockOwner | None:
    """The process that holds the lock at `path` now, or None."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return read_owner(path) or LockOwner(0, "?", 0.0, "an unknown process")
    finally:
        os.close(handle)
    return None
