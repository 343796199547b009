"""Savers that nobody closes: at the end of the process, after a fork, when they are forgotten."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

EXIT_WAIT_S = 60.0  # the longest that a process that ends waits for its node's service to be back


class Saver(Protocol):
    def finish(self, timeout_s: float) -> None:
        """Copy to its end what is being copied, and hand it over, in no more than so long."""


_open: weakref.WeakSet[Saver] = weakref.WeakSet()


def watch(saver: Saver) -> None:
    """Let it finish if the process ends."""
    _open.add(saver)


def forget(saver: Saver) -> None:
    """It is closed."""
    _open.discard(saver)


def when_dropped(thing: object, close: Callable[[], None]) -> weakref.finalize[[], object]:
    """Call `close` once nobody refers to `thing` any more, in the process that it was made in.

    In a thread of its own, for `thing` may be dropped by any thread that has any lock.
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


# Not atexit, which comes after thread pools have closed, and copies run in thread pools. These
# functions run in the order opposite to their registration, so this one before that of the pools.
threading._register_atexit(_at_exit)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_open.clear)
