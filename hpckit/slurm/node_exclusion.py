"""Nodes that a run does without: told from its events. Pure.

A node that was found unhealthy, that no agent came on, or that was lost twice, is excluded from the
jobs that follow, for a day.
Who starts the run by hand begins with a clean slate.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from hpckit.events.event_log import Event
from hpckit.events.since_last_start import since_start

AGE_S = 24 * 3600.0
"""Seconds for which a node is taken for bad."""
LOSSES = 2
"""So often, a node is lost through no accident."""


@dataclass(frozen=True)
class ExcludableNode:
    """A node that is not to be had again for a while."""

    host: str
    problem: str
    time: float
    """Seconds since the epoch, when that was last seen."""
    is_unhealthy: bool
    """By its own account, and not for having been lost."""

    @property
    def for_admin(self) -> str:
        """What who administers the cluster may type."""
        return drain_line(self.host, self.problem)


@dataclass(frozen=True)
class PartitionNodes:
    """Of a run's partition, by name."""

    usable: frozenset[str]
    """They take jobs."""
    away: frozenset[str] = frozenset()
    """They do not, and may come back by themselves."""

    def without(self, names: Collection[str]) -> PartitionNodes:
        return PartitionNodes(self.usable - set(names), self.away - set(names))


def drain_line(host: str, problem: str) -> str:
    """The command that keeps all jobs from a node."""
    reason = f"hpckit: {' '.join(problem.split())}"
    words = (f"nodename={host}", "state=drain", f"reason={reason}")
    return shlex.join(["scontrol", "update", *words])


def excludable_nodes(events: Iterable[Event], now: float) -> tuple[ExcludableNode, ...]:
    """Those of a run of Slurm's, by name.

    Args:
        now: seconds since the epoch.
    """
    recent = [e for e in since_start(events) if now - e.time < AGE_S]
    found: dict[str, ExcludableNode] = {}
    lost: dict[str, list[float]] = {}
    for event in recent:
        if event.kind == "node_lost" and event.get("is_absent"):
            found.setdefault(event["host"], _absent(event))
        elif event.kind == "node_lost":
            lost.setdefault(event["host"], []).append(event.time)
        elif event.kind == "node_unhealthy" and event["host"] is not None:
            problem = "; ".join(event["problems"])
            found[event["host"]] = ExcludableNode(event["host"], problem, event.time, True)
    for host, when in lost.items():
        if len(when) >= LOSSES and host not in found:
            found[host] = ExcludableNode(
                host, f"its agent was lost {len(when)} times", when[-1], False
            )
    return tuple(found[host] for host in sorted(found))


def _absent(event: Event) -> ExcludableNode:
    said = event.get("said")
    problem = f"no agent came: {said}" if said else "no agent came, and nothing said why"
    return ExcludableNode(event["host"], problem, event.time, False)


def choose_exclusions(
    bad: Sequence[ExcludableNode], nodes: PartitionNodes, fewest: int
) -> tuple[list[str], list[str]]:
    """Which of the bad hosts to exclude, and which not, as too few nodes would be left: now, or
    once all are back, as nobody is there then to think again.

    Args:
        fewest: nodes that the run needs.
    """
    excluded: list[str] = []
    spared: list[str] = []
    for one in sorted(bad, key=lambda one: (not one.is_unhealthy, -one.time)):
        if all(
            one.host not in group or len(group - {*excluded, one.host}) >= fewest
            for group in (nodes.usable, nodes.usable | nodes.away)
        ):
            excluded.append(one.host)
        else:
            spared.append(one.host)
    return sorted(excluded), sorted(spared)
