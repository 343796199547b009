"""How many shards this process holds open, over all of its datasets."""

import errno
import logging
import os
import resource
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from data.errors import DataError

T = TypeVar("T")

_LEAST = 16
_MOST_FILES = 65536  # a soft limit above it serves nobody: some programs walk over all numbers
_MANY = {errno.EMFILE, errno.ENFILE}

_log = logging.getLogger(__name__)


class DescriptorHolder(Protocol):
    """Something that holds a descriptor, which it gets anew when it is next used."""

    used: bool
    """Set by whoever uses it."""

    def release(self) -> None:
        """Let go of the descriptor."""


class Descriptors:
    """Those used last stay open; thread-safe.

    Which were used is found out as by the CLOCK algorithm (Corbato, "A paging experiment with the
    Multics system", 1969), so that to use one costs no lock.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._held: deque[weakref.ref[DescriptorHolder]] = deque()
        self._lock = threading.Lock()
        self._told = 0  # shards read at a time, of which it was said that they are too many

    @property
    def limit(self) -> int:
        """How many may be open: half of what the process may still open when it first asks."""
        if self._limit is None:
            self._limit = _budget(_raised(), _open_now())
        return self._limit

    def hold(self, one: DescriptorHolder) -> None:
        """It has opened its descriptor; others may have to let go of theirs."""
        one.used = True
        limit = self.limit
        with self._lock:
            self._held.append(weakref.ref(one))
            while len(self._held) > limit:
                self._release_one()

    def opening(self, make: Callable[[], T]) -> T:
        """`make()`, and once more with fewer others open if the process has too many files."""
        try:
            return make()
        except (DataError, OSError) as error:
            if not _is_of_many(error):
                raise
            self._shrink()
        return make()

    def check(self, live: int) -> None:
        """Say so, once, if `live` shards, which are read at a time, cannot all be open."""
        if live > max(self.limit, self._told):
            self._told = live
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            _log.warning(
                "%d shards are read at a time and %d can be open, so most reads have to open one"
                " anew: raise the limit of open files (`ulimit -n` is %d, %d at most here), or take"
                " fewer streams or a smaller window",
                *(live, self.limit, soft, hard),
            )

    def _release_one(self) -> None:
        for _ in range(len(self._held)):
            one = (ref := self._held.popleft())()
            if one is not None and one.used:
                one.used = False
                self._held.append(ref)
                continue
            if one is not None:
                one.release()
            return
        if (one := self._held.popleft()()) is not None:  # all are in use: the one first seen
            one.release()

    def _shrink(self) -> None:
        with self._lock:
            before = len(self._held)
            self._limit = max(1, before * 3 // 4)
            while len(self._held) > self._limit:
                self._release_one()
        _log.warning(
            "too many open files in this process: of %d shards that were open it holds %d from now"
            " on; raise the limit of open files (`ulimit -n`)",
            *(before, self._limit),
        )

    def after_fork(self) -> None:
        """In a child: the lock may be held by a thread that is not there, and what the parent holds
        open counts as taken."""
        self.__init__()  # type: ignore[misc]


def _budget(soft: int, taken: int) -> int:
    return max(_LEAST, (soft - taken) // 2)


def _raised() -> int:
    """The soft limit of open files, raised as far as this process may by itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    most = _MOST_FILES if hard == infinite else min(hard, _MOST_FILES)
    if soft == infinite or soft >= most:
        return _MOST_FILES if soft == infinite else min(soft, _MOST_FILES)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError) as error:
        _log.info("the limit of open files stays %d: %s", soft, error)
        return soft
    _log.info("the limit of open files of this process is raised from %d to %d", soft, most)
    return most


def _open_now() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _is_of_many(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in _MANY:
            return True
        error = error.__cause__
    return False


SHARDS = Descriptors()
"""Of this process."""
os.register_at_fork(after_in_child=SHARDS.after_fork)
