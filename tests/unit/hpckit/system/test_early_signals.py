"""Signals to a command that has not started a run yet."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from hpckit.system.early_signals import early_signals


def test_a_preemption_stays_pending_and_is_dropped_at_the_end() -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with early_signals():
        signal.raise_signal(signal.SIGUSR2)
        assert signal.SIGUSR2 in signal.sigpending()
    assert signal.SIGUSR2 not in signal.sigpending()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def test_a_preemption_that_another_thread_receives_stays_pending_and_is_dropped() -> None:
    is_over = threading.Event()
    receiver = threading.Thread(target=is_over.wait)
    receiver.start()
    try:
        with early_signals():
            os.kill(os.getpid(), signal.SIGUSR2)
            while not is_pending_for_this_thread(signal.SIGUSR2):
                time.sleep(0.01)
        assert not is_pending_for_this_thread(signal.SIGUSR2)
    finally:
        is_over.set()
        receiver.join()


def is_pending_for_this_thread(number: signal.Signals) -> bool:
    """Whether this thread, and not only the process, has such a signal pending."""
    status = dict(
        line.split(":\t") for line in Path("/proc/thread-self/status").read_text().splitlines()
    )
    return bool(int(status["SigPnd"], 16) >> (number - 1) & 1)


def test_sigterm_interrupts_and_its_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), early_signals():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_starts_runs_as_well() -> None:
    started: list[int] = []

    def start() -> None:
        with early_signals():
            started.append(1)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert started == [1]
