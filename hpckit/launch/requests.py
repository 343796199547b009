"""What the supervisor is asked to do, by signals to it and to the agents.

    SIGUSR2, SIGTERM  preemption: every rank saves and leaves, the next generation goes on
    SIGINT            stop: every rank saves and leaves, nothing goes on

On Slurm, SIGTERM stops the run if the job was cancelled by a person.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection
from types import FrameType

from hpckit.run.board import Request

_REQUESTS = {signal.SIGUSR2: Request.PREEMPT, signal.SIGINT: Request.STOP}


class Requests:
    """The strongest one since the last that was carried out."""

    def __init__(self) -> None:
        """Takes over the process's signals at once: from here on none is lost."""
        self.now = Request.NONE
        self._is_told_to_end = False  # by SIGTERM, whose meaning is not known yet
        for number in (*_REQUESTS, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_REQUESTS, signal.SIGTERM))

    def hear(self, names: Collection[str], is_cancelled: Callable[[], bool]) -> Request:
        """What is asked now. May ask Slurm what a signal means, which takes a while.

        Args:
            names: of signals that agents got, since the last call.
            is_cancelled: whether a person ends the job for good.
        """
        if signal.SIGUSR2.name in names:
            self.now = max(self.now, Request.PREEMPT)
        if self._is_told_to_end or signal.SIGTERM.name in names:
            self._is_told_to_end = False
            self.now = max(self.now, Request.STOP if is_cancelled() else Request.PREEMPT)
        return self.now

    def end(self, asked: Request) -> None:
        """It was carried out; one that came later is still to be."""
        if self.now is asked:
            self.now = Request.NONE

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self._is_told_to_end = True
        else:
            self.now = max(self.now, _REQUESTS[signal.Signals(number)])
