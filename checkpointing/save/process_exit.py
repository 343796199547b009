"""Ends savers that were not closed: at process exit, after a fork, and when they are
garbage-collected."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

EXIT_WAIT_S = 60.0  # longest time that an ending process waits for its node's service to restart


class Saver(Protocol):
    def finish(self, timeout_s: float) -> None:
        """Complete the copy that is in progress and hand it over, within `timeout_s` seconds."""


_open: weakref.WeakSet[Saver] = weakref.WeakSet()


def watch(saver: Saver) -> None:
    """Register a saver to be finished if the process ends."""
    _open.add(saver)


def forget(saver: Saver) -> None:
    """Unregister a saver that was closed."""
    _open.discard(saver)


def when_dropped(thing: object, close: Callable[[], None]) -> weakref.finalize[[], object]:
    """Call `close` when `thing` is garbage-collected, in the process that created it.

    `close` runs in its own thread, because `thing` may be collected in any thread, with any lock
    held.
    """
    pid = os.getpid()

    def start() -> None:
        if os.getpid() == pid:
            threading.Thread(target=close, name="dropped", daemon=True).start()

    finalizer = weakref.finalize(thing, start)
    finalizer.atexit = False
    return finalizer


def _at_exit() -> None:
    deadline_s = time.monotonic() + EXIT_WAIT_S
    for saver in list(_open):
        saver.finish(max(0.0, deadline_s - time.monotonic()))


# Not atexit, whose functions run after thread pools have closed, while copies run in thread pools.
# These functions run in reverse order of registration, so this one runs before that of the pools.
threading._register_atexit(_at_exit)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_open.clear)
