"""Signals to a command that has not started a run yet."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from hpckit.system.early_signals import early_signals


def test_a_preemption_stays_pending_and_is_dropped_at_the_end() -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with early_signals():
        os.kill(os.getpid(), signal.SIGUSR2)
        assert signal.SIGUSR2 in signal.sigpending()
    assert signal.SIGUSR2 not in signal.sigpending()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


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
