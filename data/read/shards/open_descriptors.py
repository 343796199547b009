"""The limit of shards that this process holds open, over all of its datasets."""

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
_MOST_FILES = 65536  # a higher soft limit is of no use: some programs walk over all numbers
_MANY = {errno.EMFILE, errno.ENFILE}

_log = logging.getLogger(__name__)


class DescriptorHolder(Protocol):
    """An object that holds a descriptor, which it opens again when it is next used."""

    used: bool
    """Set at each use."""

    def release(self) -> None:
        """Close the descriptor."""


class DescriptorBudget:
    """A budget of open descriptors: the most recently used stay open. Thread-safe.

    Use is tracked by the CLOCK algorithm (Corbato, "A paging experiment with the Multics system",
    1969), so that a use takes no lock.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._held: deque[weakref.ref[DescriptorHolder]] = deque()
        self._lock = threading.Lock()
        self._warned_live = 0  # the largest number of live shards that was warned of

    @property
    def limit(self) -> int:
        """Return how many may be open: half of what the process may still open when this is first
        called."""
        if self._limit is None:
            self._limit = _budget(_raise_soft_limit(), _open_now())
        return self._limit

    def register(self, one: DescriptorHolder) -> None:
        """Note that an object has opened its descriptor; others may have to close theirs."""
        one.used = True
        limit = self.limit
        with self._lock:
            self._held.append(weakref.ref(one))
            while len(self._held) > limit:
                self._release_one()

    def open(self, make: Callable[[], T]) -> T:
        """Return `make()`; if the process has too many open files, close others and call it
        again."""
        try:
            return make()
        except (DataError, OSError) as error:
            if not _is_too_many_files(error):
                raise
            self._shrink()
        return make()

    def check_live(self, live: int) -> None:
        """Warn once if `live` shards, which are read at a time, cannot all be open."""
        if live > max(self.limit, self._warned_live):
            self._warned_live = live
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            _log.warning(
                "%d shards are read at a time, but only %d can be open, so most reads have to open "
                "one again: raise the limit of open files (`ulimit -n` is %d, at most %d here), or "
                "use fewer streams or a smaller window",
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
        # all are in use: release the first one seen
        if (one := self._held.popleft()()) is not None:
            one.release()

    def _shrink(self) -> None:
        with self._lock:
            # holders that no longer exist have closed their descriptors: releasing them frees none
            self._held = deque(one for one in self._held if one() is not None)
            before = len(self._held)
            self._limit = max(1, before * 3 // 4)
            while len(self._held) > self._limit:
                self._release_one()
        _log.warning(
            "too many open files in this process: of the %d shards that were open, it keeps %d "
            "open from now on; raise the limit of open files (`ulimit -n`)",
            *(before, self._limit),
        )

    def after_fork(self) -> None:
        """Reset the state in a forked child: a thread that does not exist there may hold the lock,
        and the descriptors that the parent holds open count as taken."""
        self.__init__()  # type: ignore[misc]


def _budget(soft: int, taken: int) -> int:
    return max(_LEAST, (soft - taken) // 2)


def _raise_soft_limit() -> int:
    """Raise the soft limit of open files as far as this process may; returns it."""
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


def _is_too_many_files(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in _MANY:
            return True
        error = error.__cause__
    return False


OPEN_SHARDS = DescriptorBudget()
"""The budget of this process, which the shards of all of its datasets share."""
os.register_at_fork(after_in_child=OPEN_SHARDS.after_fork)
