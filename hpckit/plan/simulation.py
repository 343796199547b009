"""What becomes of a job's time when nodes fail: a simulation of events, on paper.

Failures are a Poisson process. Between two of them the job trains, and saves every so often: first
into the memory of its nodes, from there into the store. What a failure costs depends on what it
takes along: a worker that crashes leaves the memory of its node behind, a node that is lost does
not, unless the next node holds a copy.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import ceil


@dataclass(frozen=True)
class Job:
    """What fails, and what is left for it."""

    nodes: int
    mtbf_s: float
    """Mean time between two failures of one node."""
    lost_share: float
    """Of failures, those after which the node is gone, with its memory."""
    spares: int
    """Nodes that stand by."""
    repair_s: float
    """From the loss of a node until it, or another one, stands by instead."""


@dataclass(frozen=True)
class Saves:
    """How often, and how long they take."""

    interval_s: float
    """Of training between two snapshots."""
    stall_s: float
    """That training waits for a snapshot."""
    durable_s: float
    """From a snapshot until the store has it; the next one on its way there begins after that."""
    in_memory: bool
    """Whether one can go on from the memory of nodes that are there."""
    replicas: int
    """Other nodes whose memory has a node's snapshot, too."""


@dataclass(frozen=True)
class Recovery:
    """Seconds of its steps."""

    detect_s: float
    restart_s: float
    """Processes and rendezvous."""
    load_memory_s: float
    """From the memory of the nodes themselves, or of their neighbours."""
    load_store_s: float


@dataclass
class Time:
    """Where it went, in seconds."""

    training: float = 0.0
    """That was kept."""
    stall: float = 0.0
    detect: float = 0.0
    wait: float = 0.0
    """For a node to stand by."""
    restart: float = 0.0
    load: float = 0.0
    again: float = 0.0
    """Of training that was done again."""

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))

    @property
    def goodput(self) -> float:
        """Share of the time that was training which was kept."""
        return self.training / self.total

    def shares(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) / self.total for field in fields(self)}


def simulate(
    job: Job, saves: Saves, recovery: Recovery, length_s: float, chance: random.Random
) -> Time:
    """One course of `length_s` seconds."""
    return _Course(job, saves, recovery, length_s, chance).run()


class _Course:
    """The clock, and how much training is done, and kept where."""

    def __init__(
        self, job: Job, saves: Saves, recovery: Recovery, end_s: float, chance: random.Random
    ) -> None:
        self._job, self._saves, self._recovery = job, saves, recovery
        self._end, self._chance = end_s, chance
        self._now, self._done = 0.0, 0.0
        self._in_memory, self._in_store = 0.0, 0.0
        self._spares = job.spares
        self._repairs: list[float] = []
        self._failure = self._next_failure()
        self.time = Time()

    def run(self) -> Time:
        while self._now < self._end:
            self._train()
            if self._now < self._end:
                self._recover()
        return self.time

    def _next_failure(self) -> float:
        return self._now + self._chance.expovariate(self._job.nodes / self._job.mtbf_s)

    def _train(self) -> None:
        """Until something fails, or the end."""
        saves, begun = self._saves, self._done
        passed = min(self._failure, self._end) - self._now
        cycle = saves.interval_s + saves.stall_s
        cycles, rest = divmod(passed, cycle)
        done = cycles * saves.interval_s + min(rest, saves.interval_s)
        self._done += done
        self.time.training += done
        self.time.stall += passed - done
        self._now += passed
        if cycles:
            self._in_memory = begun + cycles * saves.interval_s
        every = max(1, ceil(saves.durable_s / cycle))  # snapshots to one that the store gets
        stored = every * ((passed - saves.durable_s) // (every * cycle))
        if stored > 0:
            self._in_store = begun + stored * saves.interval_s

    def _recover(self) -> None:
        """From failures that may come while it does."""
        lost_memory = False
        while True:
            is_lost = self._chance.random() < self._job.lost_share
            lost_memory |= not self._saves.in_memory or (is_lost and not self._saves.replicas)
            self._failure = self._next_failure()
            if is_lost:
                self._take_spare()
            if all(self._spend(*step) for step in self._steps(lost_memory)):
                break
            if self._now >= self._end:
                return
        kept = self._in_store if lost_memory else self._in_memory
        self._again(self._done - kept)
        self._done = self._in_memory = kept

    def _steps(self, from_store: bool) -> Iterator[tuple[str, float]]:
        it = self._recovery
        yield "detect", it.detect_s
        yield "wait", self._wait_s()
        yield "restart", it.restart_s
        yield "load", it.load_store_s if from_store else it.load_memory_s

    def _spend(self, part: str, seconds: float) -> bool:
        """False if it was cut short, by another failure or the end."""
        until = min(self._now + seconds, self._failure, self._end)
        setattr(self.time, part, getattr(self.time, part) + until - self._now)
        is_whole = until >= self._now + seconds
        self._now = until
        return is_whole

    def _take_spare(self) -> None:
        self._spares -= 1
        heapq.heappush(self._repairs, self._now + self._job.repair_s)

    def _wait_s(self) -> float:
        """Until as many nodes are there as the job has."""
        while self._repairs and self._repairs[0] <= self._now:
            heapq.heappop(self._repairs)
            self._spares += 1
        if self._spares >= 0:
            return 0.0
        return heapq.nsmallest(-self._spares, self._repairs)[-1] - self._now

    def _again(self, seconds: float) -> None:
        self.time.training -= seconds
        self.time.again += seconds
