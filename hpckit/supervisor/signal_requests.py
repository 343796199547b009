"""What the supervisor is asked to do, by signals to it and to the agents.

    SIGUSR2, SIGTERM  preemption: every rank saves and leaves, the next generation goes on
    SIGINT            stop: every rank saves and leaves, nothing goes on

On Slurm, SIGTERM stops the run if the job was cancelled by a person. Slurm may take long to tell,
and either way every rank saves and leaves: it is a preemption until it is known to be more.
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
    """The strongest one since the last that was carried out."""

    def __init__(self) -> None:
        """Takes over the process's signals at once: from here on none is lost."""
        self.now = WorkerRequest.NONE
        self._came: list[str] = []  # names of signals to this process, not looked at yet
        self._asker = ThreadPoolExecutor(1, "asker")
        self._answers: list[Future[bool]] = []  # whether it was a person, to come
        numbers = [signal.Signals[name] for name in _REQUESTS]
        for number in numbers:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def hear(self, names: Collection[str], is_cancelled: Callable[[], bool]) -> WorkerRequest:
        """What is asked now. Never waits.

        Args:
            names: of signals that agents got, since the last call.
            is_cancelled: whether a person ends the job for good. Called in a thread of its own.
        """
        came = {*names, *(self._came.pop(0) for _ in range(len(self._came)))}
        asked = [_REQUESTS[name] for name in came if name in _REQUESTS]
        self.now = max([self.now, *asked])
        if signal.SIGTERM.name in came:
            self._ask(is_cancelled)
        self._take_answers()
        return self.now

    def has_any(self) -> bool:
        """Whether something is asked that is not carried out, heard of or not."""
        return bool(self._came) or self.now is not WorkerRequest.NONE

    def settled(self) -> WorkerRequest:
        """What is asked, once it is known what the signals so far mean: that takes a while."""
        wait(self._answers)
        self._take_answers()
        return self.now

    def end(self, asked: WorkerRequest) -> None:
        """It was carried out; one that came later is still to be."""
        if self.now is asked:
            self.now = WorkerRequest.NONE

    def _ask(self, is_cancelled: Callable[[], bool]) -> None:
        """Again for each signal, as a person may come after the scheduler; but each agent passes
        on the same one, and one question that has not been put yet is enough for all of them."""
        if not any(not answer.running() and not answer.done() for answer in self._answers):
            self._answers.append(self._asker.submit(is_cancelled))

    def _take_answers(self) -> None:
        for answer in [answer for answer in self._answers if answer.done()]:
            self._answers.remove(answer)
            if error := answer.exception():
                log.warning("whether a person ends the job is not known: %s", error)
            elif answer.result():
                self.now = WorkerRequest.STOP

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._came.append(signal.Signals(number).name)
