"""Events and log lines about nodes that are left out of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from hpckit.events.event_log import EventLog
from hpckit.events.schema import AgentKilled, NodeLost, NodeUnhealthy
from hpckit.slurm.allocation import Allocation
from hpckit.slurm.node_exclusion import drain_line
from hpckit.supervisor.node_selection.suspect_reports import SuspectReporter

log = logging.getLogger(__name__)


class NodeProblemReporter:
    """Reports each problem of each node once."""

    def __init__(
        self, job: Allocation | None, events: EventLog, suspects: SuspectReporter | None = None
    ) -> None:
        """
        Args:
            job: the Slurm job. None: all nodes are simulated on this machine.
            suspects: informs other runs of the nodes. None: they are not informed.
        """
        self._job, self._events, self._suspects = job, events, suspects
        self._reported: set[tuple[int, str]] = set()
        self._reported_absent: set[int] = set()

    def report_unhealthy(
        self, generation: int, unhealthy: Mapping[int, Sequence[str]]
    ) -> tuple[str, ...]:
        """Reports new problems, and returns the first problem of each node for the verdict."""
        for node, problems in sorted(unhealthy.items()):
            if new := {(node, problem) for problem in problems} - self._reported:
                self._reported |= new
                self._emit(generation, node, problems)
                self._tell_others()
        where = {node: self._host(node) or "this machine" for node in sorted(unhealthy)}
        found = (f"{name} ({_shortened(unhealthy[node])})" for node, name in where.items())
        return tuple(dict.fromkeys(found))

    def report_lost(self, generation: int, nodes: Iterable[int]) -> None:
        """Reports nodes of the job whose agents are lost without a request to leave."""
        for node in nodes if self._job is not None else ():
            self._events.emit(NodeLost(generation=generation, node=node, host=self._host(node)))
            self._tell_others()

    def report_absent(self, generation: int, nodes: Mapping[int, str | None]) -> None:
        """Reports once each node of the job on which no agent started, with the last line of its
        log, if there is one."""
        for node, said in sorted(nodes.items()) if self._job is not None else ():
            if node not in self._reported_absent:
                self._reported_absent.add(node)
                host = self._host(node)
                log.error("no agent started on %s: %s", self.name(node), said or "its log is empty")
                self._events.emit(
                    NodeLost(generation=generation, node=node, host=host, is_absent=True, said=said)
                )
                self._tell_others()

    def name(self, node: int) -> str:
        """Returns the node's name for messages."""
        host = self._host(node)
        return f"node {node}" if host is None else f"node {node} ({host})"

    def report_replaced(self, generation: int, nodes: Iterable[int]) -> None:
        """Reports nodes whose agents were killed and replaced."""
        for node in nodes:
            self._events.emit(AgentKilled(generation=generation, node=node, host=self._host(node)))

    def _emit(self, generation: int, node: int, problems: Sequence[str]) -> None:
        host, what = self._host(node), "; ".join(problems)
        log.error("node %d (%s) is left out: %s", node, host or "this machine", what)
        self._events.emit(
            NodeUnhealthy(
                generation=generation,
                node=node,
                host=host,
                problems=list(problems),
                admin=drain_line(host, what) if host is not None else None,
            )
        )

    def _tell_others(self) -> None:
        if self._suspects is not None:
            self._suspects.report()

    def _host(self, node: int) -> str | None:
        """Returns Slurm's name of the node."""
        return None if self._job is None else self._job.hosts[node]


def _shortened(problems: Sequence[str]) -> str:
    more = len(problems) - 1
    return f"{problems[0]}; and {more} more" if more else problems[0]
