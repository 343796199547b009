"""Whether a consumer does better to read by itself than to wait for threads which read for it.

Python runs one thread at a time, so samples that are in memory come no faster from two threads than
from one, and each read hands the interpreter's lock to and fro, which costs more than the read.
Threads win where reads wait for a disk, and where the consumer has something else to do meanwhile.
"""

import resource
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

S = TypeVar("S")
T = TypeVar("T")

_REST = 4  # results that threads make after a read alone that waited; then twice as many
_MOST_REST = 4096


class ReadCost(NamedTuple):
    """Of one result: seconds that went by, those of them that its thread worked, and how often it
    fell asleep: not where another program had the processor meanwhile."""

    wall_s: float
    cpu_s: float
    sleeps: int

    def __sub__(self, before: "ReadCost") -> "ReadCost":
        return ReadCost(
            self.wall_s - before.wall_s, self.cpu_s - before.cpu_s, self.sleeps - before.sleeps
        )

    @property
    def waited(self) -> bool:
        """Whether more of it was waiting than work, such as for a disk."""
        return self.sleeps > 0 and self.wall_s > 2 * self.cpu_s


def leaves_time(own_s: float, cost: ReadCost) -> bool:
    """Whether a consumer that is busy for `own_s` between two results leaves threads enough time.

    They need about half as long again as a consumer that reads by itself.
    """
    return own_s > cost.cpu_s / 2


class InlineReadDecision:
    """Decides it anew after each result, by what the last ones have cost."""

    def __init__(self) -> None:
        self._cost: ReadCost | None = None
        self._given_s: float | None = None
        self._own_s = 0.0
        self._left, self._rest = 0, _REST
        self.now = False
        """Whether the consumer is to read by itself."""

    def timed(self, load: Callable[[S], T]) -> Callable[[S], T]:
        """`load`, which says what it costs; in whatever thread."""

        def timed(step: S) -> T:
            before = _now()
            made = load(step)
            self._cost = _now() - before
            return made

        return timed

    def asked(self) -> None:
        """The consumer wants the next result."""
        if self._given_s is not None:
            self._own_s = time.perf_counter() - self._given_s

    def given(self, by_itself: bool) -> None:
        """It has it, and whether it has read that itself."""
        self._left = max(0, self._left - 1)
        cost = self._cost
        if cost is not None and by_itself:
            self._judge(cost)
        busy = self._given_s is None or cost is None or leaves_time(self._own_s, cost)
        self.now = not busy and not self._left
        self._given_s = time.perf_counter()

    def _judge(self, cost: ReadCost) -> None:
        if cost.waited:
            self._left, self._rest = self._rest, min(2 * self._rest, _MOST_REST)
        else:
            self._rest = _REST


def _now() -> ReadCost:
    """Of this thread, so far."""
    sleeps = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    return ReadCost(time.perf_counter(), time.thread_time(), sleeps)
