"""Nodes that are left out of a run, as its events tell of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from hpckit.events.event_log import EventLog
from hpckit.slurm.allocation import Allocation
from hpckit.slurm.node_exclusion import drain_line

log = logging.getLogger(__name__)


class NodeProblemReporter:
    """Tells of each node once for each problem."""

    def __init__(self, job: Allocation | None, events: EventLog) -> None:
        """
        Args:
            job: None: all nodes are played by this machine.
        """
        self._job, self._events = job, events
        self._told: set[tuple[int, str]] = set()
        self._told_absent: set[int] = set()

    def tell(self, generation: int, unhealthy: Mapping[int, Sequence[str]]) -> tuple[str, ...]:
        """What a verdict says of nodes with problems: of each, the first one."""
        for node, problems in sorted(unhealthy.items()):
            if new := {(node, problem) for problem in problems} - self._told:
                self._told |= new
                self._emit(generation, node, problems)
        where = {node: self._host(node) or "this machine" for node in sorted(unhealthy)}
        found = (f"{name} ({_in_short(unhealthy[node])})" for node, name in where.items())
        return tuple(dict.fromkeys(found))

    def tell_lost(self, generation: int, nodes: Iterable[int]) -> None:
        """Nodes of the job whose agents are gone, and nobody had asked them to leave."""
        for node in nodes if self._job is not None else ():
            where = {"node": node, "host": self._host(node)}
            self._events.emit("node_lost", generation=generation, **where)

    def tell_absent(self, generation: int, nodes: Mapping[int, str | None]) -> None:
        """Nodes of the job that no agent came on, told once each; with the last words of what was
        to start it, if there were any."""
        for node, said in sorted(nodes.items()) if self._job is not None else ():
            if node not in self._told_absent:
                self._told_absent.add(node)
                where = {"node": node, "host": self._host(node)}
                log.error("no agent came on %s: %s", self.name(node), said or "not a word")
                self._events.emit(
                    "node_lost", generation=generation, **where, is_absent=True, said=said
                )

    def name(self, node: int) -> str:
        """For a person."""
        host = self._host(node)
        return f"node {node}" if host is None else f"node {node} ({host})"

    def tell_fallen(self, generation: int, nodes: Iterable[int]) -> None:
        """Nodes whose agents were killed, and have successors."""
        for node in nodes:
            where = {"node": node, "host": self._host(node)}
            self._events.emit("agent_killed", generation=generation, **where)

    def _emit(self, generation: int, node: int, problems: Sequence[str]) -> None:
        host, what = self._host(node), "; ".join(problems)
        log.error("node %d (%s) is left out: %s", node, host or "this machine", what)
        self._events.emit(
            "node_unhealthy",
            generation=generation,
            node=node,
            host=host,
            problems=list(problems),
            admin=drain_line(host, what) if host is not None else None,
        )

    def _host(self, node: int) -> str | None:
        """Slurm's name of it."""
        return None if self._job is None else self._job.hosts[node]


def _in_short(problems: Sequence[str]) -> str:
    more = len(problems) - 1
    return f"{problems[0]}; and {more} more" if more else problems[0]
