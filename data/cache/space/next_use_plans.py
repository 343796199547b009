"""Next-use plans: what the jobs of this node will read next, in one file per store and process that
counts while its process lives.

A plan is JSON, `{url key: time}`, by the machine's monotonic clock, which all processes share. Its
file is locked by its writer, so the kernel tells whether that process is still alive.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from data.cache.files.file_locks import FileLock

_SUFFIX = ".plan"


class NextUsePlan:
    """The next-use plan of one store in one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: FileLock | None = None

    def publish(self, uses: Mapping[str, float]) -> None:
        """Publish `uses` (times by URL key) in place of the plan before. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # a new name each time: a process that finds the last file dead must not remove this one
        path = self._folder / f"{os.getpid()}-{os.urandom(8).hex()}{_SUFFIX}"
        temporary = path.with_suffix(".tmp")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        lock = FileLock(fd, path)
        try:
            with open(os.dup(fd), "wb") as file:
                file.write(json.dumps(dict(uses)).encode())
            # locked before others can see it, so that it never looks dead
            fcntl.flock(fd, fcntl.LOCK_EX)
            temporary.replace(path)
        except OSError:
            lock.forget()
            temporary.unlink(missing_ok=True)
            raise
        before, self._lock = self._lock, lock
        if before is not None:
            before.release()

    def withdraw(self) -> None:
        """Withdraw the plan: this job needs nothing any more."""
        if self._lock is not None:
            with suppress(OSError):  # the next reader of plans finds it unlocked
                self._lock.release()
            self._lock = None


def next_uses(folder: Path) -> dict[str, float]:
    """Return the earliest next use by URL key over all live plans; removes dead ones. Raises
    OSError."""
    uses: dict[str, float] = {}
    try:
        names = os.listdir(folder)  # noqa: PTH208 (names are enough)
    except FileNotFoundError:
        return uses
    for name in sorted(names):
        if name.endswith(_SUFFIX):
            for key, when_s in _read(folder / name).items():
                uses[key] = min(when_s, uses.get(key, when_s))
    return uses


def _read(path: Path) -> dict[str, float]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    with open(fd, "rb") as file:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _parse(file.read())
        path.unlink(missing_ok=True)
        return {}


def _parse(content: bytes) -> dict[str, float]:
    try:
        found = json.loads(content)
        return {str(key): float(when_s) for key, when_s in found.items()}
    except (
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ):  # of another version of hpckit: not used
        return {}
