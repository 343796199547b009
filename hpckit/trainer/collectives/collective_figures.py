"""Figures of collectives and of exchanges between two nodes or ranks, and what is slow among them.
Pure; without torch.

The bus bandwidth is that of NVIDIA's nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md):
the size divided by the time, times a factor that makes it the bandwidth of the slowest link for any
number of ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, median_high
from typing import Literal, TypeAlias

from pydantic import TypeAdapter

Operation: TypeAlias = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"
]
OPERATIONS: tuple[Operation, ...] = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
)
GroupKind: TypeAlias = Literal["world", "node", "rail"]
"""All ranks; the ranks of a node; the ranks of one number on all nodes, which share a network rail
where each GPU has a network adapter of its own."""
SLOW = 0.75
"""Share of the usual bandwidth below which a node, a rank or a pair is called slow. Healthy links
of one kind differ by a few percent; a link at half its width or a cable with errors is at 0.5 or
less."""
FEWEST = 3
"""Number of members from which on it can be told which one is slow."""


@dataclass(frozen=True)
class CollectiveTiming:
    """The time of a collective of one size over one kind of group."""

    operation: Operation
    group: GroupKind
    ranks: int
    """Number of ranks of each group."""
    size: int
    """Bytes: of the whole buffer of an all-reduce or a broadcast, of the result of an all-gather,
    and of the input of a reduce-scatter or an all-to-all on each rank."""
    seconds: float
    """Seconds per call of the group that is in the middle; of a group, its slowest rank counts."""
    slowest: str
    """The slowest group."""
    slowest_s: float
    wrong_ranks: tuple[int, ...] = ()
    """Ranks on which the result was wrong."""

    @property
    def bandwidth(self) -> float:
        """Bus bandwidth in bytes per second."""
        return self.size / self.seconds * bus_factor(self.operation, self.ranks)


@dataclass(frozen=True)
class ExchangeTiming:
    """An exchange in both directions between two nodes, of which all ranks take part, or between
    two ranks of a node."""

    kind: Literal["nodes", "ranks"]
    first: str
    second: str
    size: int
    """Bytes in each direction."""
    seconds: float

    @property
    def bandwidth(self) -> float:
        """Bytes per second in each direction."""
        return self.size / self.seconds


@dataclass(frozen=True)
class CollectiveReport:
    """All timings of a run of `collective_timing`."""

    nodes: tuple[str, ...]
    ranks_per_node: int
    backend: str
    torch: str
    """Version of torch."""
    device: str
    collectives: tuple[CollectiveTiming, ...]
    exchanges: tuple[ExchangeTiming, ...]


REPORT = TypeAdapter(CollectiveReport)
"""Reads and writes a report as JSON."""


def bus_factor(operation: Operation, ranks: int) -> float:
    """Return the factor from the size over the time to the bus bandwidth."""
    if operation == "broadcast":
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if operation == "all_reduce" else share


def round_robin(count: int) -> list[list[int | None]]:
    """Return the rounds in which each of `count` members meets each other once, by the circle
    method: for each round, the partner of each member. With an odd number, one member of each round
    has none."""
    even = count + count % 2
    rounds = []
    for turn in range(even - 1):
        partners: list[int | None] = [None] * count
        for place in range(even // 2):
            one, other = _member_at(place, turn, even), _member_at(even - 1 - place, turn, even)
            if one < count and other < count:
                partners[one], partners[other] = other, one
        rounds.append(partners)
    return rounds


def _member_at(place: int, turn: int, even: int) -> int:
    """Return the member at a place of the circle: member 0 stays, the others rotate each turn."""
    return 0 if place == 0 else (place - 1 + turn) % (even - 1) + 1


def rank_label(node: str, number: int) -> str:
    """Return the name of a rank of a node in `ExchangeTiming`."""
    return f"{node} local rank {number}"


def middle_group(groups: dict[str, float]) -> tuple[float, str, float]:
    """Return the median of the groups' seconds, the name of the slowest group, and its seconds."""
    slowest = max(groups, key=groups.__getitem__)
    return median(groups.values()), slowest, groups[slowest]


def findings(report: CollectiveReport) -> list[str]:
    """Return what is wrong or slow, a sentence each; empty if nothing is."""
    return [
        *_wrong_results(report.collectives),
        *map(str, slow_exchanges("nodes", report.exchanges)),
        *map(str, slow_exchanges("ranks", report.exchanges)),
        *_slow_groups(report.collectives),
    ]


def is_wrong(report: CollectiveReport) -> bool:
    """Return whether any collective gave a wrong result."""
    return any(one.wrong_ranks for one in report.collectives)


def _wrong_results(timings: Sequence[CollectiveTiming]) -> Iterator[str]:
    for one in timings:
        if one.wrong_ranks:
            ranks = ", ".join(map(str, one.wrong_ranks[:16]))
            more = len(one.wrong_ranks) - 16
            yield (
                f"{one.operation} of {one.size:,} bytes over each {one.group} gave a WRONG result "
                f"on rank {ranks}{f' and {more} more' if more > 0 else ''}"
            )


@dataclass(frozen=True)
class SlowExchange:
    """A member that is slow with most of its partners, or a slow link between two members that are
    not."""

    members: tuple[str, ...]
    """The member, or both ends of the link."""
    bandwidth: float
    """Bytes per second in each direction; of a member, the median over its partners."""
    usual: float
    """The usual bandwidth."""

    def __str__(self) -> str:
        found, share = _rate(self.bandwidth), f"{self.bandwidth / self.usual:.0%}"
        if len(self.members) == 1:
            return (
                f"{self.members[0]} is slow: it exchanges {found} with its partners, {share} of "
                f"the usual {_rate(self.usual)}"
            )
        return (
            f"the link between {' and '.join(self.members)} is slow: {found}, {share} of the usual "
            f"{_rate(self.usual)}"
        )


def slow_exchanges(
    kind: Literal["nodes", "ranks"], exchanges: Sequence[ExchangeTiming], slow: float = SLOW
) -> Iterator[SlowExchange]:
    """Yield the members that are slow with most of their partners, and then the pairs that are slow
    although neither of their members is.

    Usual is the upper quartile of all pairs, since a slow member slows many pairs: it is that of
    healthy pairs while no more than half of the members are slow.

    Args:
        slow: share of the usual bandwidth below which a member or a pair is slow.
    """
    pairs = [one for one in exchanges if one.kind == kind]
    own: dict[str, list[float]] = defaultdict(list)
    for one in pairs:
        own[one.first].append(one.bandwidth)
        own[one.second].append(one.bandwidth)
    if len(own) < FEWEST:
        return
    ascending = sorted(one.bandwidth for one in pairs)
    usual = ascending[3 * len(ascending) // 4]
    members = {
        name: middle for name, found in own.items() if (middle := median_high(found)) < slow * usual
    }
    for name, found in sorted(members.items(), key=lambda item: item[1]):
        yield SlowExchange((name,), found, usual)
    for one in sorted(pairs, key=lambda one: one.bandwidth):
        if one.bandwidth < slow * usual and not {one.first, one.second} & members.keys():
            yield SlowExchange((one.first, one.second), one.bandwidth, usual)


def _slow_groups(timings: Sequence[CollectiveTiming]) -> Iterator[str]:
    """Yield the group that is slow in most of the large collectives of its kind."""
    for kind in ("node", "rail"):
        own = [one for one in timings if one.group == kind]
        largest = max((one.size for one in own), default=0)
        late = [one for one in own if one.size == largest and one.seconds < SLOW * one.slowest_s]
        names = {one.slowest for one in late}
        if len(names) == 1 and 2 * len(late) > sum(one.size == largest for one in own):
            factor = median(one.slowest_s / one.seconds for one in late)
            what = "the ranks of" if kind == "node" else "the ranks with"
            yield (
                f"{what} {names.pop()} are slow together: their collectives take {factor:.1f} "
                "times as long as those of the other groups"
            )


def _rate(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.3g} GB/s"
