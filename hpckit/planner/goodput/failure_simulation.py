"""A discrete-event simulation of a job's time with failures.

Faults of each kind are a Poisson process. Between two of them the job trains, and saves at an
interval: first into the memory of its nodes, from there into the store. The cost of a fault depends
on what it takes with it: a worker that crashes leaves the memory of its node behind, a node that is
lost does not, unless the next node holds a replica, and a preemption takes the whole job, but gives
notice.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import ceil, inf
from typing import Literal

Takes = Literal["worker", "node", "job"]
"""What a fault takes with it: processes alone; a node with its memory; or the whole allocation,
with notice and after a last save."""


@dataclass(frozen=True)
class SimulatedFault:
    """A kind of fault."""

    kind: str
    mtbf_s: float
    """Mean time in seconds between two faults of the whole job; infinite: none."""
    takes: Takes
    detect_s: float
    """Seconds until it is detected."""
    meet_s: float
    """Seconds for processes and rendezvous, until all ranks can load."""


@dataclass(frozen=True)
class SimulatedJob:
    """The nodes of a job and its waiting times."""

    nodes: int
    spares: int
    """Number of spares."""
    fewest: int
    """Least number of nodes on which it trains instead of waiting for one; `nodes`: it never
    shrinks."""
    repair_s: float
    """Seconds from the loss of a node until it, or another one, is available as a spare."""
    queue_s: float
    """Mean seconds that the successor job waits for nodes after a preemption."""


@dataclass(frozen=True)
class SimulatedSaves:
    """The interval and durations of saves, and the durations of loads."""

    interval_s: float
    """Seconds of training between two snapshots."""
    stall_s: float
    """Seconds that training waits for a snapshot."""
    durable_s: float
    """Seconds from a snapshot until it is in the store; the next one is written after that."""
    in_memory: bool
    """Whether the job can resume from the memory of the remaining nodes."""
    replicas: int
    """Number of other nodes whose memory holds replicas of a node's snapshot."""
    load_memory_s: float
    """Seconds to load from the memory of the nodes themselves, or of their neighbours."""
    load_store_s: float


@dataclass
class FaultCost:
    """What the faults of one kind cost, in seconds."""

    detect: float = 0.0
    wait: float = 0.0
    """Waiting for a spare."""
    queue: float = 0.0
    """Waiting of the successor job in the queue, after a preemption."""
    meet: float = 0.0
    load: float = 0.0
    again: float = 0.0
    """Training that was repeated."""


PARTS = ("training", "stall", "short", *(field.name for field in fields(FaultCost)))
"""All parts of the time."""
GROWING = "growing"
"""The kind under which the cost is counted when a job that had shrunk takes a returned node in."""


@dataclass
class TimeBreakdown:
    """A breakdown of the time, in seconds."""

    training: float = 0.0
    """Training that was kept, as long as all nodes would have needed for it."""
    stall: float = 0.0
    """Stall of saves, including the last one before a preemption."""
    short: float = 0.0
    """Additional time of training because nodes were missing."""
    costs: dict[str, FaultCost] = field(default_factory=dict)
    """Costs by kind of fault."""

    @property
    def total(self) -> float:
        return sum(self.parts().values())

    @property
    def goodput(self) -> float:
        """Share of the time that was kept training, also called ETTR."""
        return self.training / self.total

    def parts(self) -> dict[str, float]:
        """Return seconds by part, over all kinds."""
        own = {"training": self.training, "stall": self.stall, "short": self.short}
        found = [vars(cost) for cost in self.costs.values()]
        return {part: own.get(part, sum(one.get(part, 0.0) for one in found)) for part in PARTS}

    def shares(self) -> dict[str, float]:
        """Return shares by part; their sum is 1."""
        return {part: seconds / self.total for part, seconds in self.parts().items()}

    def shares_of(self) -> dict[str, dict[str, float]]:
        """Return shares by kind of fault and part."""
        return {
            kind: {part: seconds / self.total for part, seconds in vars(cost).items()}
            for kind, cost in self.costs.items()
        }


def simulate(
    job: SimulatedJob,
    faults: Sequence[SimulatedFault],
    saves: SimulatedSaves,
    length_s: float,
    chance: random.Random,
) -> TimeBreakdown:
    """Simulate one course of `length_s` seconds."""
    return _Simulation(job, faults, saves, length_s, chance).run()


class _Simulation:
    """The state of a simulation: the clock, the training done, and where it is saved."""

    def __init__(
        self,
        job: SimulatedJob,
        faults: Sequence[SimulatedFault],
        saves: SimulatedSaves,
        end_s: float,
        chance: random.Random,
    ) -> None:
        self._job, self._saves, self._end, self._chance = job, saves, end_s, chance
        self._rates: Mapping[SimulatedFault, float] = {fault: 1 / fault.mtbf_s for fault in faults}
        self._meet_s = min((fault.meet_s for fault in faults), default=0.0)
        self._now, self._done = 0.0, 0.0
        self._in_memory, self._in_store = 0.0, 0.0
        self._spares = job.spares
        """Number of spares; negative: number of missing nodes."""
        self._repairs: list[float] = []
        self._failure = self._next_failure()
        self.time = TimeBreakdown(costs={fault.kind: FaultCost() for fault in faults})

    def run(self) -> TimeBreakdown:
        while self._now < self._end:
            is_back = self._train()
            if self._now < self._end:
                self._grow() if is_back else self._recover()
        return self.time

    def _next_failure(self) -> float:
        rate = sum(self._rates.values())
        return self._now + self._chance.expovariate(rate) if rate else inf

    def _train(self) -> bool:
        """Train until a failure, the end, or the return of a missing node; returns whether it is
        the latter."""
        saves, begun = self._saves, self._done
        back_s = self._repairs[0] if self._spares < 0 else inf
        until = max(self._now, min(self._failure, self._end, back_s))
        passed = until - self._now
        speed = min(1.0, 1 + self._spares / self._job.nodes)
        cycle = saves.interval_s + saves.stall_s
        cycles, rest = divmod(passed, cycle)
        trained = cycles * saves.interval_s + min(rest, saves.interval_s)
        self._done += speed * trained
        self.time.training += speed * trained
        self.time.short += (1 - speed) * trained
        self.time.stall += passed - trained
        self._now = until
        if cycles:
            self._in_memory = begun + speed * cycles * saves.interval_s
        every = max(1, ceil(saves.durable_s / cycle))  # snapshots per stored one
        stored = every * ((passed - saves.durable_s) // (every * cycle))
        if stored > 0:
            self._in_store = begun + speed * stored * saves.interval_s
        return back_s <= until

    def _grow(self) -> None:
        """Take a returned node in: all nodes meet again, after a save."""
        saves = self._saves
        self._count_repairs()
        if not saves.in_memory and not self._leave():
            return
        self._in_memory = self._done
        cost = self.time.costs.setdefault(GROWING, FaultCost())
        load_s = saves.load_memory_s if saves.in_memory else saves.load_store_s
        steps = (("meet", self._meet_s), ("load", load_s))
        if not all(self._spend(cost, *step) for step in steps) and self._now < self._end:
            self._recover()

    def _recover(self) -> None:
        """Recover from a fault, and from those that occur meanwhile."""
        lost_memory = False
        first: FaultCost | None = None
        while True:
            fault = self._which()
            cost = self.time.costs[fault.kind]
            if first is None and fault.takes == "job" and not self._leave():
                return
            first = first or cost
            lost_memory |= not self._saves.in_memory or self._takes_memory(fault)
            self._failure = self._next_failure()
            if fault.takes == "node":
                self._take_spare()
            if all(self._spend(cost, *step) for step in self._steps(fault, lost_memory)):
                break
            if self._now >= self._end:
                return
        kept = self._in_store if lost_memory else self._in_memory
        self.time.training -= self._done - kept
        first.again += self._done - kept
        self._done = self._in_memory = kept

    def _which(self) -> SimulatedFault:
        return self._chance.choices(list(self._rates), list(self._rates.values()))[0]

    def _takes_memory(self, fault: SimulatedFault) -> bool:
        return fault.takes == "job" or (fault.takes == "node" and not self._saves.replicas)

    def _leave(self) -> bool:
        """Save before the job leaves, and wait for the save; False if the end comes first."""
        until = min(self._now + self._saves.durable_s, self._end)
        self.time.stall += until - self._now
        self._now, self._in_store = until, self._done
        if self._failure <= until:
            self._failure = self._next_failure()  # a failure of what is leaving anyway
        return until < self._end

    def _steps(self, fault: SimulatedFault, from_store: bool) -> Iterator[tuple[str, float]]:
        yield "detect", fault.detect_s
        if fault.takes == "job":
            mean_s = self._job.queue_s
            yield "queue", self._chance.expovariate(1 / mean_s) if mean_s else 0.0
        yield "wait", self._wait_s()
        yield "meet", fault.meet_s
        yield "load", self._saves.load_store_s if from_store else self._saves.load_memory_s

    def _spend(self, cost: FaultCost, part: str, seconds: float) -> bool:
        """Let time pass; False if it was cut short by another fault or the end."""
        until = min(self._now + seconds, self._failure, self._end)
        setattr(cost, part, getattr(cost, part) + until - self._now)
        is_whole = until >= self._now + seconds
        self._now = until
        return is_whole

    def _take_spare(self) -> None:
        self._spares -= 1
        heapq.heappush(self._repairs, self._now + self._job.repair_s)

    def _count_repairs(self) -> None:
        while self._repairs and self._repairs[0] <= self._now:
            heapq.heappop(self._repairs)
            self._spares += 1

    def _wait_s(self) -> float:
        """Return the seconds until as many nodes are available as the job needs."""
        self._count_repairs()
        missing = -self._spares - (self._job.nodes - self._job.fewest)
        return heapq.nsmallest(missing, self._repairs)[-1] - self._now if missing > 0 else 0.0
