"""Signals to a command that starts a run, before there is a run that could be asked for anything.

A preemption (SIGUSR2) stays pending until the run is followed. SIGTERM ends the command as Ctrl-C
does: what it has begun to write is removed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PENDING = {signal.SIGUSR2}


@contextmanager
def early_signals() -> Iterator[None]:
    """Keeps SIGUSR2 pending for the duration of the block, and makes SIGTERM a
    KeyboardInterrupt.

    At the end, a SIGUSR2 that is still pending is dropped, as nothing was started. Outside of the
    main thread, where no handler can be installed, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, PENDING)
    before = {number: signal.signal(number, _keep) for number in PENDING}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        for number in PENDING:
            signal.signal(number, _drop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PENDING)  # a wait could miss what a thread took
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _keep(number: int, frame: FrameType | None) -> None:
    """Makes a signal pending that another thread, in which it is not blocked, has received."""
    signal.raise_signal(number)


def _drop(number: int, frame: FrameType | None) -> None:
    """Does nothing with a signal that came before there was a run."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
