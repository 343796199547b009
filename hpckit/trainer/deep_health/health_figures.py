"""What the measurements of all nodes and ranks have given, and which of them are wrong or slow.
Pure; without torch.

A limit is a share of what the others have, as no table knows every device: a measurement is
compared with the median of those of the other nodes, or of the other ranks if there is one node, as
far as their devices are of the same kind.
The median stays that of healthy nodes while fewer than half of them are slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

from pydantic import TypeAdapter

from hpckit.config.spec import DeepHealthSpec
from hpckit.trainer.collectives.collective_figures import (
    FEWEST,
    ExchangeTiming,
    rank_label,
    slow_exchanges,
)

Measure: TypeAlias = Literal[
    "matrix",
    "memory",
    "host_to_device",
    "device_to_host",
    "disk_write",
    "disk_read",
    "store_write",
    "store_read",
]
MEASURES: dict[Measure, str] = {
    "matrix": "matrix products",
    "memory": "memory bandwidth",
    "host_to_device": "copies from host to GPU",
    "device_to_host": "copies from GPU to host",
    "disk_write": "writes to disk",
    "disk_read": "reads from disk",
    "store_write": "writes to the checkpoint store",
    "store_read": "reads from the checkpoint store",
}
"""Each measure in words."""


@dataclass(frozen=True)
class HealthMeasurement:
    """A rate that was measured on one rank, or of one node."""

    measure: Measure
    node: int
    """Place of the node."""
    rank: int | None
    """Global rank; None: of the node as a whole."""
    value: float
    """FLOP or bytes per second."""


@dataclass(frozen=True)
class WrongResult:
    """A result that was not what it has to be."""

    node: int
    """Place of the node."""
    rank: int
    what: str


@dataclass(frozen=True)
class DeepHealthReport:
    """All measurements."""

    nodes: tuple[str, ...]
    """Name of each node by its place."""
    ranks_per_node: int
    devices: tuple[str, ...]
    """Name of each rank's device."""
    measurements: tuple[HealthMeasurement, ...] = ()
    wrong: tuple[WrongResult, ...] = ()
    exchanges: tuple[ExchangeTiming, ...] = ()
    is_complete: bool = False
    """Whether all measurements were made."""


HEALTH_REPORT = TypeAdapter(DeepHealthReport)
"""Reads and writes a report as JSON."""


@dataclass(frozen=True)
class HealthProblem:
    """A wrong or slow measurement of a node, a rank, or a link."""

    node: int
    """Place of the node."""
    peer: int | None
    """Place of the node at the other end of a link between nodes. None: it is no such link."""
    rank: int | None
    device: str
    measure: str
    value: float | None
    """FLOP or bytes per second; None: a result was wrong."""
    median: float | None
    """The median of the others, or the usual value of links."""
    text: str
    """The problem, without the name of the node."""

    @property
    def is_wrong(self) -> bool:
        """Whether a result was wrong, and not only slow."""
        return self.value is None

    def excludes(self, limits: DeepHealthSpec) -> bool:
        """Returns whether the node is left out because of the problem. A slow link between two
        nodes that are fast with all others leaves neither of them out."""
        return self.is_wrong or (limits.exclude_slow and self.peer is None)


def health_problems(report: DeepHealthReport, limits: DeepHealthSpec) -> list[HealthProblem]:
    """Returns what is wrong, and then what is slow."""
    return [
        *_wrong(report),
        *_slow_measurements(report, limits),
        *_slow_links(report, limits),
    ]


def is_judged(report: DeepHealthReport) -> bool:
    """Returns whether there are enough nodes, or ranks of the one node, to tell which one is
    slow."""
    members = len(report.nodes) if len(report.nodes) > 1 else report.ranks_per_node
    return members >= FEWEST


def median_of_others(
    one: HealthMeasurement, same: Sequence[HealthMeasurement], nodes: int
) -> float | None:
    """Returns the median of the values that `one` is compared with: those of the other nodes, or
    of the other ranks where there is one node. None: there are too few of them.

    Args:
        same: all measurements of the same measure.
    """
    if nodes > 1:
        others = [other for other in same if other.node != one.node]
        members = {other.node for other in others}
    else:
        others = [other for other in same if other.rank != one.rank]
        members = {other.rank for other in others if other.rank is not None}
    return median(other.value for other in others) if len(members) >= FEWEST - 1 else None


def share_of(measure: Measure, limits: DeepHealthSpec) -> float:
    """Returns the share of the median of the others below which a measurement counts as slow."""
    shares: Mapping[Measure, float] = {
        "matrix": limits.slow_matrix,
        "memory": limits.slow_memory,
        "host_to_device": limits.slow_transfer,
        "device_to_host": limits.slow_transfer,
        "disk_write": limits.slow_disk,
        "disk_read": limits.slow_disk,
        "store_write": limits.slow_store,
        "store_read": limits.slow_store,
    }
    return shares[measure]


def device_kind(device: str) -> str:
    """Returns the kind of a device: its name without its number on the node."""
    return device.partition(" ")[2] if device.startswith("cuda:") else device


def rate_words(value: float, measure: str) -> str:
    """Returns a rate in words."""
    if measure == "matrix":
        return f"{value / 1e12:.3g} TFLOP/s"
    return f"{value / 1e9:.3g} GB/s"


def _wrong(report: DeepHealthReport) -> Iterator[HealthProblem]:
    for one in report.wrong:
        device = report.devices[one.rank]
        text = f"rank {one.rank} ({device}): {one.what}"
        yield HealthProblem(one.node, None, one.rank, device, "result", None, None, text)


def _slow_measurements(report: DeepHealthReport, limits: DeepHealthSpec) -> Iterator[HealthProblem]:
    for measure, words in MEASURES.items():
        share = share_of(measure, limits)
        for one in report.measurements:
            if one.measure != measure:
                continue
            middle = median_of_others(one, _comparable(one, report), len(report.nodes))
            if middle is None or one.value >= share * middle:
                continue
            device = _device_of(one, report)
            who = f"rank {one.rank} ({device}): " if one.rank is not None else ""
            text = (
                f"{who}{words} at {rate_words(one.value, measure)}, "
                f"{one.value / middle:.0%} of the median {rate_words(middle, measure)} of the "
                f"{'other nodes' if len(report.nodes) > 1 else 'other ranks'} "
                f"(limit {share:.0%})"
            )
            yield HealthProblem(one.node, None, one.rank, device, measure, one.value, middle, text)


def _comparable(one: HealthMeasurement, report: DeepHealthReport) -> list[HealthMeasurement]:
    """Returns the measurements of the same measure on devices of the same kind."""
    kind = device_kind(_device_of(one, report))
    return [
        other
        for other in report.measurements
        if other.measure == one.measure and device_kind(_device_of(other, report)) == kind
    ]


def _device_of(one: HealthMeasurement, report: DeepHealthReport) -> str:
    """Returns the device of the rank, or of the first rank of the node."""
    first = one.node * report.ranks_per_node
    return report.devices[first if one.rank is None else one.rank]


def _slow_links(report: DeepHealthReport, limits: DeepHealthSpec) -> Iterator[HealthProblem]:
    local = report.ranks_per_node
    places = {name: place for place, name in enumerate(report.nodes)}
    ranks = {
        rank_label(name, number): place * local + number
        for place, name in enumerate(report.nodes)
        for number in range(local)
    }
    for kind in ("nodes", "ranks"):
        for slow in slow_exchanges(kind, report.exchanges, limits.slow_link):
            first, peer, rank = slow.members[0], None, None
            if kind == "nodes":
                node = places[first]
                peer = places[slow.members[1]] if len(slow.members) > 1 else None
            else:
                rank = ranks[first]
                node = rank // local
            device = report.devices[rank if rank is not None else node * local]
            yield HealthProblem(
                node, peer, rank, device, "link", slow.bandwidth, slow.usual, str(slow)
            )
