"""Determines the excluded nodes of a run from its events. Pure.

A node that was unhealthy, on which no agent started, or that was lost twice is excluded from the
following jobs for a day. After a person starts the run, its own events exclude no node, but the
suspect list (`hpckit.suspects`) may have it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from hpckit.events.schema import (
    Event,
    ExclusionWithdrawn,
    NodeLost,
    NodesExcluded,
    NodeUnhealthy,
)
from hpckit.events.since_last_start import since_start

AGE_S = 24 * 3600.0
"""Seconds for which a node stays excluded."""
LOSSES = 2
"""Number of losses after which a node is excluded."""


@dataclass(frozen=True)
class ExcludableNode:
    """A node that is to be excluded for a while."""

    host: str
    problem: str
    time: float
    """When the problem was last seen, in seconds since the epoch."""
    is_unhealthy: bool
    """Whether the node failed its health check, and was not merely lost."""
    count: int = 1
    """How often the problem was seen."""

    @property
    def for_admin(self) -> str:
        """The command for an administrator of the cluster."""
        return drain_line(self.host, self.problem)


@dataclass(frozen=True)
class PartitionNodes:
    """The nodes of a run's partition by name."""

    usable: frozenset[str]
    """Nodes that take jobs."""
    away: frozenset[str] = frozenset()
    """Nodes that take no jobs now, but may come back by themselves."""

    def without(self, names: Collection[str]) -> PartitionNodes:
        return PartitionNodes(self.usable - set(names), self.away - set(names))


def drain_line(host: str, problem: str) -> str:
    """Returns the command that keeps all jobs off a node."""
    reason = f"hpckit: {' '.join(problem.split())}"
    words = (f"nodename={host}", "state=drain", f"reason={reason}")
    return shlex.join(["scontrol", "update", *words])


def excludable_nodes(events: Iterable[Event], now: float) -> tuple[ExcludableNode, ...]:
    """Returns the nodes to exclude for a run on Slurm, by name.

    Args:
        now: seconds since the epoch.
    """
    recent = [e for e in since_start(events) if now - e.time < AGE_S]
    found: dict[str, ExcludableNode] = {}
    lost: dict[str, list[float]] = {}
    for event in recent:
        if not isinstance(event, NodeLost | NodeUnhealthy) or event.host is None:
            continue
        if isinstance(event, NodeUnhealthy):
            problem = "; ".join(event.problems)
            before = found.get(event.host)
            count = before.count + 1 if before is not None and before.is_unhealthy else 1
            found[event.host] = ExcludableNode(event.host, problem, event.time, True, count)
        elif event.is_absent:
            found.setdefault(event.host, _absent(event.host, event))
        else:
            lost.setdefault(event.host, []).append(event.time)
    for host, when in lost.items():
        if len(when) >= LOSSES and host not in found:
            found[host] = ExcludableNode(
                host, f"its agent was lost {len(when)} times", when[-1], False, len(when)
            )
    return tuple(found[host] for host in sorted(found))


def _absent(host: str, event: NodeLost) -> ExcludableNode:
    said = event.said
    problem = f"no agent started: {said}" if said else "no agent started, for an unknown reason"
    return ExcludableNode(host, problem, event.time, False)


def excluded_from(events: Iterable[Event], job: str) -> tuple[str, ...]:
    """Returns the nodes that a job of the run must not get by the run's events, by name."""
    found: set[str] = set()
    for event in events:
        if isinstance(event, NodesExcluded) and event.job == job:
            found = set(event.hosts)
        elif isinstance(event, ExclusionWithdrawn) and event.job == job:
            found -= set(event.hosts)
    return tuple(sorted(found))


def choose_exclusions(
    bad: Sequence[ExcludableNode],
    nodes: PartitionNodes,
    fewest: int,
    can_run: Callable[[Sequence[str]], bool] = lambda hosts: True,
) -> tuple[list[str], list[str]]:
    """Chooses which of the bad hosts to exclude. The others are spared because too few nodes would
    be left, now or after all nodes have come back, as the list is not revised then.

    Args:
        fewest: the number of nodes that the run needs.
        can_run: returns whether the job can be placed without these hosts under its constraints.
            It is asked about single hosts only if the answer about all of them is no.
    """
    excluded, spared = _choose(bad, nodes, fewest, lambda hosts: True)
    if not excluded or can_run(excluded):
        return excluded, spared
    return _choose(bad, nodes, fewest, can_run)


def _choose(
    bad: Sequence[ExcludableNode],
    nodes: PartitionNodes,
    fewest: int,
    can_run: Callable[[Sequence[str]], bool],
) -> tuple[list[str], list[str]]:
    excluded: list[str] = []
    spared: list[str] = []
    for one in sorted(bad, key=lambda one: (not one.is_unhealthy, -one.time)):
        if all(
            one.host not in group or len(group - {*excluded, one.host}) >= fewest
            for group in (nodes.usable, nodes.usable | nodes.away)
        ) and can_run(sorted([*excluded, one.host])):
            excluded.append(one.host)
        else:
            spared.append(one.host)
    return sorted(excluded), sorted(spared)
