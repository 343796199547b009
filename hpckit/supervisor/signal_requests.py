"""The requests that signals make of the supervisor, whether it or an agent received them.

    SIGUSR2, SIGTERM  preemption: every rank saves and exits, and another generation follows
    SIGINT            stop: every rank saves and exits, and no generation follows

On Slurm, SIGTERM stops the run if a person cancelled the job. Slurm may be slow to answer whether
one did, and every rank saves and exits either way, so SIGTERM counts as a preemption until then.
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
    """The strongest request that has not been carried out."""

    def __init__(self, is_cancelled: Callable[[], bool]) -> None:
        """Installs the signal handlers of the process, so that no signal is lost from here on.

        Args:
            is_cancelled: returns whether a person cancelled the job. It is called in a thread of
                its own.
        """
        self.current = WorkerRequest.NONE
        self._is_cancelled = is_cancelled
        # names of signals to this process that were not handled yet
        self._pending_signals: list[str] = []
        self._query_executor = ThreadPoolExecutor(1, "cancellation-query")
        self._answers: list[Future[bool]] = []  # whether a person cancelled the job
        numbers = [signal.Signals[name] for name in _REQUESTS]
        for number in numbers:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def update(self, names: Collection[str]) -> WorkerRequest:
        """Adds the signals since the last call and returns the current request without waiting.

        Args:
            names: signals that agents received since the last call.
        """
        came = {*names, *(self._pending_signals.pop(0) for _ in range(len(self._pending_signals)))}
        asked = [_REQUESTS[name] for name in came if name in _REQUESTS]
        self.current = max([self.current, *asked])
        if signal.SIGTERM.name in came:
            self._query_cancelled()
        self._take_answers()
        return self.current

    def has_any(self) -> bool:
        """Returns whether there is a request that is not carried out, or a signal that is not
        handled yet."""
        return bool(self._pending_signals) or self.current is not WorkerRequest.NONE

    def wait_until_known(self) -> WorkerRequest:
        """Waits until the meaning of all signals so far is known, and returns the request."""
        wait(self._answers)
        self._take_answers()
        return self.current

    def complete(self, asked: WorkerRequest) -> None:
        """Marks the request as carried out, unless a stronger one came since."""
        if self.current is asked:
            self.current = WorkerRequest.NONE

    def _query_cancelled(self) -> None:
        """Starts a query of whether a person cancelled the job. Each signal needs a new query, as a
        person may act after the scheduler; but each agent passes on the same signal, so one query
        that has not started yet is enough for all of them."""
        if not any(not answer.running() and not answer.done() for answer in self._answers):
            self._answers.append(self._query_executor.submit(self._is_cancelled))

    def _take_answers(self) -> None:
        for answer in [answer for answer in self._answers if answer.done()]:
            self._answers.remove(answer)
            if error := answer.exception():
                log.warning("cannot find out whether a person cancelled the job: %s", error)
            elif answer.result():
                self.current = WorkerRequest.STOP

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._pending_signals.append(signal.Signals(number).name)
