"""The handling of signals that Slurm, or whoever ends a session, sends to all processes of a job.

SIGTERM can mean two things to a worker: the job is preempted or ended, so the state should still be
saved; or torchrun ends its workers to restart them. The heartbeat table tells them apart: in the
first case the supervisor gets the signal too, and asks the workers to leave.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from hpckit.ipc.heartbeat_table import WorkerRequest

log = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""Seconds that the supervisor has to ask the workers to leave."""
_POLL_S = 0.02
_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
_descriptors: list[int] = []
"""Where `_take` writes which signals came."""


def install_signal_guard(request: Callable[[], WorkerRequest]) -> None:
    """Let SIGTERM end this process only if the process was not asked to leave, and ignore SIGUSR2.
    Programs and forks that this process starts do neither, so that it can end them. If the user's
    code handles SIGTERM itself from here on, the guard leaves it to that.

    SIGTERM also takes effect while the main thread waits in C code, as in a collective, where the
    signal handlers of Python do not run.

    Args:
        request: returns what this process is asked to do at present.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    _descriptors.append(write)
    for number in _SIGNALS:
        signal.signal(number, _take)
    os.register_at_fork(
        before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_restore_defaults
    )
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read, request), name="signal guard", daemon=True).start()


def _take(number: int, frame: FrameType | None) -> None:
    """Lets `_watch` read of the signal also where an event loop of the user's code has set a
    descriptor of its own (`signal.set_wakeup_fd`). A handler, as a program inherits that a signal
    is ignored, but no handler."""
    for descriptor in _descriptors:
        with suppress(BlockingIOError):
            os.write(descriptor, bytes([number]))


def _block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _restore_defaults() -> None:
    """Restore the default handling in a fork of the process, such as a worker of a DataLoader.

    Without this, signals to the fork would reach its parent through the pipe that both share.
    """
    signal.set_wakeup_fd(-1)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _unblock_signals()


def _watch(read: int, request: Callable[[], WorkerRequest]) -> None:
    decided_s = -PATIENCE_S
    while True:
        is_term = signal.SIGTERM in os.read(read, 64)
        is_new = time.monotonic() - decided_s >= PATIENCE_S  # each signal is read twice
        if is_term and is_new and signal.getsignal(signal.SIGTERM) is _take:
            _decide(request)
            decided_s = time.monotonic()


def _decide(request: Callable[[], WorkerRequest]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if request() is not WorkerRequest.NONE:
            log.info("SIGTERM with a request to leave: this process saves first")
            return
        time.sleep(_POLL_S)
    log.info("SIGTERM without a request to leave: this process ends")
    os._exit(128 + signal.SIGTERM)
