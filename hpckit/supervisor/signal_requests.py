"""Requests to the supervisor, which arrive as signals to it and to the agents.

    SIGUSR2, SIGTERM  preemption: every rank saves and leaves, the next generation goes on
    SIGINT            stop: every rank saves and leaves, nothing goes on

On Slurm, SIGTERM stops the run if a person cancelled the job. Slurm may be slow to answer whether
one did, and every rank saves and leaves either way, so SIGTERM counts as a preemption until then.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import FrameType

from hpckit.ipc.heartbeat_table import WorkerRequest

log = logging.getLogger(__name__)

_REQUESTS = {
    signal.SIGUSR2.name: WorkerRequest.PREEMPT,
    signal.SIGTERM.name: WorkerRequest.PREEMPT,
    signal.SIGINT.name: WorkerRequest.STOP,
}


class SupervisorRequests:
    """The strongest request since the last one that was carried out."""

    def __init__(self) -> None:
        """Installs the signal handlers of the process, so that no signal is lost from here on."""
        self.now = WorkerRequest.NONE
        self._pending_signals: list[
            str
        ] = []  # names of signals to this process that were not handled yet
        self._query_executor = ThreadPoolExecutor(1, "asker")
        self._answers: list[Future[bool]] = []  # whether a person cancelled the job
        numbers = [signal.Signals[name] for name in _REQUESTS]
        for number in numbers:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def hear(self, names: Collection[str], is_cancelled: Callable[[], bool]) -> WorkerRequest:
        """Returns the present request without waiting.

        Args:
            names: signals that agents received since the last call.
            is_cancelled: whether a person cancelled the job. Called in a thread of its own.
        """
        came = {*names, *(self._pending_signals.pop(0) for _ in range(len(self._pending_signals)))}
        asked = [_REQUESTS[name] for name in came if name in _REQUESTS]
        self.now = max([self.now, *asked])
        if signal.SIGTERM.name in came:
            self._query_cancelled(is_cancelled)
        self._take_answers()
        return self.now

    def has_any(self) -> bool:
        """Whether there is a request that is not carried out, or a signal that is not handled
        yet."""
        return bool(self._pending_signals) or self.now is not WorkerRequest.NONE

    def settled(self) -> WorkerRequest:
        """Waits until the meaning of all signals so far is known, and returns the request."""
        wait(self._answers)
        self._take_answers()
        return self.now

    def end(self, asked: WorkerRequest) -> None:
        """Marks the request as carried out, unless a stronger one came since."""
        if self.now is asked:
            self.now = WorkerRequest.NONE

    def _query_cancelled(self, is_cancelled: Callable[[], bool]) -> None:
        """Starts a query of whether a person cancelled the job. Each signal needs a new query, as a
        person may act after the scheduler; but each agent passes on the same signal, so one query
        that has not started yet is enough for all of them."""
        if not any(not answer.running() and not answer.done() for answer in self._answers):
            self._answers.append(self._query_executor.submit(is_cancelled))

    def _take_answers(self) -> None:
        for answer in [answer for answer in self._answers if answer.done()]:
            self._answers.remove(answer)
            if error := answer.exception():
                log.warning("whether a person ends the job is not known: %s", error)
            elif answer.result():
                self.now = WorkerRequest.STOP

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._pending_signals.append(signal.Signals(number).name)
