"""Signals that Slurm sends to all processes of a step, where it tracks them by their parents.

SIGTERM means two things there: the job is to be preempted or ended, so that the state should still
be saved; or torchrun ends its workers, to start them again. Which of both it is, the board tells:
in the first case the supervisor hears of it too, and asks the workers to leave.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from hpckit.ipc.heartbeat_table import WorkerRequest

log = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""Seconds for the supervisor to ask the workers to leave."""
_POLL_S = 0.02
_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)


def install_signal_guard(request: Callable[[], WorkerRequest]) -> None:
    """Let SIGTERM end this process only if nobody asks it to leave, and SIGUSR2 not at all.

    It ends also while its main thread waits in C code, as in a collective, where Python's own
    handlers do not run.

    Args:
        request: what is asked of this process now.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    os.register_at_fork(before=_hold, after_in_parent=_let_in, after_in_child=_lower)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read, request), name="shield", daemon=True).start()


def _hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _let_in() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _lower() -> None:
    """In a fork of the process, such as a worker of a DataLoader, which is ended as usual. What it
    got before would be told to its parent, by their common pipe."""
    signal.set_wakeup_fd(-1)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _let_in()


def _watch(read: int, request: Callable[[], WorkerRequest]) -> None:
    while True:
        if signal.SIGTERM in os.read(read, 64):
            _decide(request)


def _decide(request: Callable[[], WorkerRequest]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if request() is not WorkerRequest.NONE:
            log.info("SIGTERM: the request to leave is on its way")
            return
        time.sleep(_POLL_S)
    log.info("SIGTERM, and no request to leave: ending")
    os._exit(128 + signal.SIGTERM)
