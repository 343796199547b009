"""The cost of stragglers: how much shorter a step would be without the slow nodes, from a window of
traced steps. Pure.

In a step, all ranks wait for the one that works longest before a collective. The what-if analysis
(Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025)
replaces the work of a slow node's ranks by the median of the ranks with the same work.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

from hpckit.events.step_phases import PARTS, Part
from hpckit.trainer.timing.stragglers import FEWEST

WINDOW = 12
"""Number of traced steps in a window."""
CHANCE = 1e-3
"""Largest probability with which equal ranks give a straggler in a window."""
MATTERS = 0.02
"""Share of a step that stragglers have to cost to be reported."""

_COMPUTING: tuple[Part, ...] = ("forward", "backward", "compute")
"""Phases in which ranks may wait for others, so that their own time is not known."""
_OTHER = PARTS[-1]


@dataclass(frozen=True)
class RankTime:
    """The times of one rank in a traced step, in seconds."""

    step_s: float
    own_s: float
    """Those in which it did not only wait for others; NaN: not known."""
    phases: Mapping[Part, float]
    """Those of each step phase, with the time in which it waited there."""


@dataclass(frozen=True)
class RankPlace:
    """The node of a rank, and the group of ranks that have the same amount of computation."""

    node: int
    group: int


@dataclass(frozen=True)
class SlowNode:
    """A node whose ranks are slower than ranks with the same work, for more than noise."""

    node: int
    rank: int
    """Its slowest rank."""
    excess: float
    """How much longer this rank works than the median of its group, as a share of the median."""
    phase: Part
    """The step phase in which it takes longer; "compute" is any of forward and backward."""


@dataclass(frozen=True)
class WhatIf:
    """What steps of a window would take without the slow nodes."""

    step_s: float
    """Median seconds of a step."""
    share: float
    """Share of a step that would be saved if the slow nodes were as fast as the others; 0 without a
    slow node."""
    spread: float
    """Share of a step that would be saved if all ranks were as fast as the median of their group at
    each step, which includes the cost of noise."""
    collectives: float
    """Share of a step in which even the rank that waits least waits for collectives."""
    slow: tuple[SlowNode, ...]
    """The slow nodes, the slowest first."""


def what_if(window: Sequence[Sequence[RankTime]], places: Sequence[RankPlace]) -> WhatIf | None:
    """Return the cost of stragglers in a window; None if its ranks cannot be compared.

    Ranks are compared with those of their group, of which there have to be at least `FEWEST` with
    known times. That a rank is slow has to hold against chance: if all ranks of a group were equal,
    whatever their noise, each of them would be among the m slowest of n in a step with the
    probability m/n, so the number of such steps has a binomial distribution.

    Args:
        window: the times of all ranks, by rank, of each traced step.
        places: by rank.
    """
    own = [[rank.own_s for rank in step] for step in window]
    ranks = [r for r in range(len(places)) if all(step[r] == step[r] for step in own)]
    groups = defaultdict[int, list[int]](list)
    for rank in ranks:
        groups[places[rank].group].append(rank)
    compared = {rank for group in groups.values() if len(group) >= FEWEST for rank in group}
    if not window or not compared:
        return None
    medians = [{g: median(step[r] for r in group) for g, group in groups.items()} for step in own]
    excess = {
        rank: [
            step[rank] / middle[places[rank].group] - 1 if middle[places[rank].group] else 0.0
            for step, middle in zip(own, medians, strict=True)
        ]
        for rank in compared
    }
    step_s = [max(rank.step_s for rank in step if rank.step_s == rank.step_s) for step in window]
    slow = _slow_nodes(window, places, groups, excess)
    nodes = {one.node for one in slow}
    slower = {r for r in compared if places[r].node in nodes}
    share = _saved(own, step_s, groups, slower)
    if share < MATTERS:
        share, slow = 0.0, ()
    waiting = [
        min(rank.step_s - rank.own_s for rank in step if rank.own_s == rank.own_s)
        for step in window
    ]
    return WhatIf(
        step_s=median(step_s),
        share=share,
        spread=_saved(own, step_s, groups, set(ranks)),
        collectives=median(w / s if s else 0.0 for w, s in zip(waiting, step_s, strict=True)),
        slow=slow,
    )


def _slow_nodes(
    window: Sequence[Sequence[RankTime]],
    places: Sequence[RankPlace],
    groups: Mapping[int, Sequence[int]],
    excess: Mapping[int, Sequence[float]],
) -> tuple[SlowNode, ...]:
    """Return the nodes that are slower than by chance, the slowest first."""
    by_node = defaultdict[int, list[int]](list)
    for rank in sorted(excess):
        by_node[places[rank].node].append(rank)
    tests = 1 if len(by_node) == len(excess) else 2  # of ranks, and of nodes as a whole
    chance: dict[int, float] = {}
    for group in groups.values():
        values = {rank: excess[rank] for rank in group if rank in excess}
        for rank, found in _chances(values).items():
            worse = len(excess) / len(values) * tests * found
            node = places[rank].node
            chance[node] = min(worse, chance.get(node, 1.0))
    if tests > 1 and len(by_node) >= FEWEST:
        whole = {node: _means([excess[r] for r in own]) for node, own in by_node.items()}
        for node, found in _chances(whole).items():
            chance[node] = min(tests * found, chance[node])
    found_nodes = []
    for node, own in by_node.items():
        rank = max(own, key=lambda one: median(excess[one]))
        if chance[node] <= CHANCE and median(excess[rank]) >= MATTERS:
            peers = [r for r in groups[places[rank].group] if r != rank]
            others = [r for r in peers if places[r].node != node]
            phase = _slow_phase(window, rank, others or peers)
            slow = SlowNode(node, rank, median(excess[rank]), phase)
            found_nodes.append(slow)
    return tuple(sorted(found_nodes, key=lambda one: -one.excess))


def _chances(values: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return, for each of several units with one value per step, an upper bound of the probability
    with which any of them is so often among the slowest if all are equal."""
    units, steps = len(values), len(next(iter(values.values()), ()))
    ranges = [1 << i for i in range(max(1, units // 4).bit_length())]
    ordered = [sorted(value[k] for value in values.values()) for k in range(steps)]
    found = {}
    for unit, own in values.items():
        # of equal values, all or none are among the slowest
        not_faster = [units - bisect_left(ordered[k], own[k]) for k in range(steps)]
        best = min(
            at_least(sum(n <= most for n in not_faster), steps, most / units) for most in ranges
        )
        found[unit] = min(1.0, units * len(ranges) * best)
    return found


def at_least(count: int, steps: int, probability: float) -> float:
    """Return the probability of at least `count` successes in `steps` independent trials."""
    return sum(
        comb(steps, k) * probability**k * (1 - probability) ** (steps - k)
        for k in range(count, steps + 1)
    )


def _saved(
    own: Sequence[Sequence[float]],
    step_s: Sequence[float],
    groups: Mapping[int, Sequence[int]],
    replaced: Collection[int],
) -> float:
    """Return the median share of a step that is saved if these ranks work as long as the median of
    the others of their group, or, if all of a group are replaced, as its median."""
    if not replaced:
        return 0.0
    saved = []
    for step, seconds in zip(own, step_s, strict=True):
        longest = max(step[r] for group in groups.values() for r in group)
        shorter = 0.0
        for group in groups.values():
            rest = [step[r] for r in group if r not in replaced]
            middle = median(rest or (step[r] for r in group))
            shorter = max([shorter, middle, *rest])
        saved.append((longest - shorter) / seconds if seconds else 0.0)
    return max(0.0, median(saved))


def _slow_phase(window: Sequence[Sequence[RankTime]], rank: int, others: Sequence[int]) -> Part:
    """Return the phase in which a rank takes longer than others. Where they wait for it, their
    phases last longer, so forward and backward are what no other phase explains."""
    longer_s = median(step[rank].own_s - median(step[r].own_s for r in others) for step in window)
    each = {
        part: median(
            step[rank].phases[part] - median(step[r].phases[part] for r in others)
            for step in window
        )
        for part in PARTS
        if part not in _COMPUTING
    }
    most = max(each, key=lambda part: each[part])
    if each[most] >= longer_s / 2:
        return most
    is_timed = any(step[rank].phases[part] > 0 for step in window for part in _COMPUTING)
    return "compute" if is_timed else _OTHER


def _means(rows: Iterable[Sequence[float]]) -> list[float]:
    return [sum(values) / len(values) for values in zip(*rows, strict=True)]
