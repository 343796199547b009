"""The decision whether a consumer reads by itself rather than waits for reader threads.

Python runs one thread at a time, so samples that are in memory come no faster from two threads than
from one, and each read passes the interpreter's lock back and forth, which costs more than the
read. Threads win where reads wait for a disk, and where the consumer is busy with something else.
"""

import resource
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

S = TypeVar("S")
T = TypeVar("T")

_REST = 4  # results that threads make after an inline read that waited; doubled each time
_MOST_REST = 4096
_UNMEASURED = 7  # inline reads after one that was measured: to measure a batch takes 20 us


class ReadCost(NamedTuple):
    """The cost of a result: seconds that passed, CPU seconds of its thread, and how often the
    thread slept (not counting when another program had the processor)."""

    wall_s: float
    cpu_s: float
    sleeps: int

    def __sub__(self, before: "ReadCost") -> "ReadCost":
        return ReadCost(
            self.wall_s - before.wall_s, self.cpu_s - before.cpu_s, self.sleeps - before.sleeps
        )

    @property
    def waited(self) -> bool:
        """Whether more of the time was waiting, such as for a disk, than work."""
        return self.sleeps > 0 and self.wall_s > 2 * self.cpu_s

    @property
    def busy_s(self) -> float:
        """The time that it took, without that in which another program had the processor, if the
        thread did not sleep."""
        return self.wall_s if self.sleeps else self.cpu_s


def leaves_time(own_s: float, cost: ReadCost) -> bool:
    """Return whether a consumer that is busy for `own_s` between two results leaves threads enough
    time.

    They need about half as long again as a consumer that reads by itself.
    """
    return own_s > cost.cpu_s / 2


class InlineReadDecision:
    """Decides after each result whether to read inline, by the cost of the last results."""

    def __init__(self) -> None:
        self._cost: ReadCost | None = None
        self._delivered: tuple[int, ReadCost] | None = None
        """The consumer's thread, and its cost so far, when it got the last result."""
        self._busy_s = 0.0
        self._threaded_left, self._rest = 0, _REST
        self._unmeasured = 0  # inline reads to come whose cost is not asked for
        self.now = False
        """Whether the consumer should read by itself."""

    def timed(self, load: Callable[[S], T]) -> Callable[[S], T]:
        """Return `load` such that it records its cost, in whatever thread it runs."""

        def timed(step: S) -> T:
            if self._unmeasured:
                return load(step)
            before = _now()
            made = load(step)
            self._cost = _now() - before
            return made

        return timed

    def asked(self) -> None:
        """Note that the consumer wants the next result."""
        if self._delivered is not None and not self._unmeasured:
            thread, before = self._delivered
            spent = _now() - before
            self._busy_s = spent.busy_s if thread == threading.get_ident() else spent.wall_s

    def given(self, by_itself: bool) -> None:
        """Note that the consumer has the result, and whether it has read it by itself."""
        if self._unmeasured:
            self._unmeasured -= 1
            if not self._unmeasured:
                self._delivered = threading.get_ident(), _now()
            return
        self._threaded_left = max(0, self._threaded_left - 1)
        cost = self._cost
        if cost is not None and by_itself:
            self._judge(cost)
        busy = self._delivered is None or cost is None or leaves_time(self._busy_s, cost)
        self.now = not busy and not self._threaded_left
        self._unmeasured = _UNMEASURED if by_itself and self.now else 0
        self._delivered = threading.get_ident(), _now()

    def _judge(self, cost: ReadCost) -> None:
        if cost.waited:
            self._threaded_left, self._rest = self._rest, min(2 * self._rest, _MOST_REST)
        else:
            self._rest = _REST


def _now() -> ReadCost:
    """Return the cost of this thread so far."""
    sleeps = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    return ReadCost(time.perf_counter(), time.thread_time(), sleeps)
