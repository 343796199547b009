"""The agents of a submission, as the supervisor starts, asks and ends them."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from hpckit.agent.agent import GenerationStart
from hpckit.agent.exit_report import ExitReport, NodeExit
from hpckit.agent.message_channel import HeartbeatThread, Message
from hpckit.config.spec import HealthSpec
from hpckit.events.event_log import EventLog
from hpckit.events.schema import AgentStarted
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.supervisor.agents.agent_handle import AgentHandle
from hpckit.system.child_processes import Process, has_ended_child, kill_all

log = logging.getLogger(__name__)

TICK_S = 0.05
QUIT_S = 5.0
RESTART_S, MOST_RESTART_S = 10.0, 300.0
"""First and longest delay in seconds before an agent is started again on a node that has none; the
delay doubles with each try."""
_GOOD_EXITS = (NodeExit.DONE, NodeExit.LEFT)
_T = TypeVar("_T")


class NodeRetry:
    """The schedule of new tries to start an agent on one node, with a delay that doubles."""

    def __init__(self) -> None:
        self._wait_s = RESTART_S
        self._due_s = time.monotonic() + RESTART_S

    def is_due(self) -> bool:
        """Returns whether a try is due, and if it is, schedules the next one."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        self._wait_s = min(2 * self._wait_s, MOST_RESTART_S)
        self._due_s = now_s + self._wait_s
        return True


class AgentPool:
    """The agents of a submission by node, for the duration of the `with` block. Not thread-safe."""

    def __init__(
        self,
        start: Callable[[int], Process],
        events: EventLog,
        drain_s: float | None = None,
        health: HealthSpec | None = None,
    ) -> None:
        """
        Args:
            start: starts the agent of a node; its standard input and output are pipes.
            drain_s: seconds that each agent gets at the end for the checkpoint services of its node
                to write what they hold. None: agents do not wait for these services.
            health: limits for the clocks of nodes. None: clocks are not checked.
        """
        self._start, self._events, self._drain_s = start, events, drain_s
        self._health = health
        self._agents: dict[int, AgentHandle] = {}
        self._current_nodes: frozenset[int] = frozenset()  # the nodes of this generation
        self._node_by_place: dict[int, int] = {}  # nodes by their place in the generation
        # places of nodes that were lost since the start of the generation
        self._lost_places: set[int] = set()
        self._silent: set[int] = set()  # nodes that fell silent in the previous generation
        self._nodes_seen: set[int] = set()  # nodes whose agent has said hello at least once
        self._generation = 0
        self._retries: dict[int, NodeRetry] = {}
        self._left_out: dict[int, tuple[str, ...]] = {}  # problems that an agent does not look for
        self._heartbeats = HeartbeatThread()
        self._readable = select.poll()

    def __enter__(self) -> AgentPool:
        self._heartbeats.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Asks all agents to end, and kills those that do not end in time or have not said
        hello."""
        self._record_lost()
        quit_ = {"kind": "quit", "drain_s": self._drain_s, "lost": sorted(self._lost_places)}
        for agent in self._agents.values():
            agent.channel.send(quit_)
        deadline = time.monotonic() + (self._drain_s or 0.0) + QUIT_S
        while any(m.is_there for m in self._handles()):
            self.read_messages()  # an agent that is not read from looks silent
            if time.monotonic() > deadline:
                break
            time.sleep(TICK_S)
        self._heartbeats.close()
        kill_all(agent.process for agent in self._agents.values())
        for node in list(self._agents):
            self._remove_agent(node)

    def start_agents(self, nodes: Iterable[int], generation: int) -> None:
        """Starts the agents that are missing on these nodes for a generation. Agents that failed in
        the previous generation or took no part in it check their nodes again."""
        self._record_lost()
        took_part, self._current_nodes = self._current_nodes, frozenset[int]()
        self._generation = generation
        self._silent.clear()
        self._retries.clear()
        self._note_exits()
        for node in sorted(nodes):
            agent = self._agents.get(node)
            if agent is not None and agent.is_lost():
                if agent.process.poll() is None:
                    self._silent.add(node)
                self._remove_agent(node)
            if node not in self._agents:
                self._start_agent(node)
            elif self._agents[node].was_replaced:
                self._agents[node].was_replaced = False  # the new agent says hello unasked
            elif took_part and (node not in took_part or self._has_failed(node)):
                self._agents[node].check_again()
            self._agents[node].report = None
            self._agents[node].channel.is_suspect = False

    def restart_missing(self) -> None:
        """Starts agents again on nodes that take no part, if they are due, so that the next
        generation finds these agents with their imports done."""
        for agent in list(self._handles()):
            node = agent.node
            if node in self._current_nodes or not agent.is_lost():
                continue
            retry = self._retries.setdefault(node, NodeRetry())
            if retry.is_due():
                self._remove_agent(node)
                self._start_agent(node)

    def leave_out(self, node: int, problems: Sequence[str]) -> None:
        """Counts a node as unhealthy for the rest of the job."""
        self._left_out[node] = (*self._left_out.get(node, ()), *problems)

    def hellos(self) -> dict[int, Message]:
        """Returns the hello of each agent that is there, by node, for healthy nodes."""
        known = [m for m in self._handles() if m.is_there and not m.is_checking]
        return {m.node: m.hello for m in known if m.hello is not None and not self._problems(m)}

    def unhealthy(self) -> dict[int, list[str]]:
        """Returns the problems of unhealthy nodes whose agents are there, by node."""
        found = {m.node: self._problems(m) for m in self._handles() if m.is_there}
        return {node: problems for node, problems in found.items() if problems}

    def _problems(self, agent: AgentHandle) -> list[str]:
        return [*agent.problems, *self._left_out.get(agent.node, ())]

    def absent(self, within_s: float) -> list[int]:
        """Returns the nodes on which no agent has ever said hello: it has ended, or has had
        `within_s` seconds to do so."""
        absent = {agent.node for agent in self._handles() if agent.is_absent(within_s)}
        return sorted(absent - self._nodes_seen)

    def expected(self) -> int:
        """Returns how many running agents have not yet reported the health of their nodes."""
        return len(self._awaited_agents())

    def may_return(self) -> bool:
        """Returns whether one of the awaited agents is on a node that did not fall silent in the
        previous generation."""
        return any(agent.node not in self._silent for agent in self._awaited_agents())

    def is_checking(self) -> bool:
        """Returns whether an agent is checking its node again."""
        return any(m.is_checking and not m.is_lost() for m in self._handles())

    def start_generation(self, starts: Mapping[int, GenerationStart]) -> None:
        """Sends each node that takes part its start message; the other nodes stay spares."""
        self._current_nodes = frozenset(starts)
        self._node_by_place = {start.place: node for node, start in starts.items()}
        self._lost_places = set()
        for node, start in starts.items():
            self._agents[node].channel.send({"kind": "start", "start": asdict(start)})

    def read_messages(self) -> None:
        """Reads the messages of all agents."""
        readable = {descriptor for descriptor, _ in self._readable.poll(0)}
        for agent in self._agents.values():
            is_readable = agent.channel.fileno() in readable
            agent.read_messages(self._generation, is_readable=is_readable)
        self._nodes_seen |= {node for node, agent in self._agents.items() if agent.has_said_hello}

    def signals(self) -> set[str]:
        """Returns the names of the signals that agents received since the last call."""
        found = {name for agent in self._agents.values() for name in agent.signals}
        for agent in self._agents.values():
            agent.signals.clear()
        return found

    @property
    def generation_size(self) -> int:
        """Number of nodes of this generation."""
        return len(self._current_nodes)

    def active_nodes(self) -> frozenset[int]:
        """Returns the nodes of this generation whose agents are there and have not reported."""
        return frozenset(agent.node for agent in self._active_agents())

    def take_hangs(self) -> list[tuple[int, int, float]]:
        """Returns node, attempt, and seconds since the newest heartbeat of the ranks, of each hang
        that agents have reported since the last call."""
        return [(a.node, *hang) for a in self._agents.values() for hang in _taken(a.hangs)]

    def take_examined(self) -> list[tuple[int, list[Any]]]:
        """Returns node and snapshots, as JSON values, of each examination since the last call."""
        return [(a.node, ranks) for a in self._agents.values() for ranks in _taken(a.examined)]

    def ask_examination(self) -> None:
        """Has all agents of this generation examine their ranks."""
        self._send_to_active({"kind": "examine"})

    def send_finding(self, nodes: Collection[int], words: str) -> None:
        """Tells the agents of these nodes what the hang comes from."""
        for agent in self._active_agents():
            if agent.node in nodes:
                agent.channel.send({"kind": "finding", "text": words})

    def lost(self) -> list[int]:
        """Returns the nodes of this generation that are lost and have not reported."""
        self._note_exits()
        gone = [
            n for n in self._current_nodes if n not in self._agents or self._agents[n].is_lost()
        ]
        return sorted(node for node in gone if self.report(node) is None)

    def replaced(self) -> list[int]:
        """Returns the nodes of this generation whose agents were killed and replaced before they
        reported: the nodes are there, but all that those agents had started has ended."""
        there = sorted(
            node for node in self._current_nodes - set(self.lost()) if self.report(node) is None
        )
        return [node for node in there if self._agents[node].was_replaced]

    def is_running(self) -> bool:
        """Returns whether a node that is not lost has not reported yet."""
        return bool(self._active_agents())

    def has_failed(self) -> bool:
        """Returns whether a node has reported a failed end of its part."""
        return any(report.exit not in _GOOD_EXITS for report in self.reports())

    def _has_failed(self, node: int) -> bool:
        report = self.report(node)
        return report is not None and report.exit is NodeExit.FAILED

    def report(self, node: int) -> ExitReport | None:
        agent = self._agents.get(node)
        return agent.report if agent is not None else None

    def reports(self) -> tuple[ExitReport, ...]:
        """Returns the reports of this generation, ordered by node."""
        found = (self.report(node) for node in sorted(self._current_nodes))
        return tuple(report for report in found if report is not None)

    def _record_lost(self) -> None:
        lost = frozenset(self.lost())
        self._lost_places |= {place for place, node in self._node_by_place.items() if node in lost}

    def suspect(self, places: Iterable[int]) -> None:
        """Shortens the time after which silent agents count as lost, for nodes at these places: a
        connection of theirs that ends only with the node has ended."""
        for place in places:
            agent = self._agents.get(self._node_by_place.get(place, -1))
            if agent is not None:
                agent.channel.is_suspect = True

    def ask(self, request: WorkerRequest) -> None:
        """Asks all workers of this generation to save and leave."""
        self._send_to_active({"kind": "ask", "request": request.name})

    def end_generation(self, within_s: float) -> None:
        """Ends the generation, and kills each agent that does not report within `within_s`
        seconds."""
        self._send_to_active({"kind": "end"})
        deadline = time.monotonic() + within_s
        while self._active_agents() and time.monotonic() < deadline:
            self.read_messages()
            time.sleep(TICK_S)
        for agent in self._active_agents():
            log.error("node %d does not answer, so its agent is killed", agent.node)
            kill_all([agent.process])

    def _start_agent(self, node: int) -> None:
        process = self._start(node)
        agent = self._agents[node] = AgentHandle(node, process, self._health)
        self._heartbeats.add(agent.channel)
        self._readable.register(agent.channel.fileno(), select.POLLIN)
        self._events.emit(AgentStarted(generation=self._generation, node=node, pid=process.pid))

    def _remove_agent(self, node: int) -> None:
        agent = self._agents.pop(node)
        self._heartbeats.remove(agent.channel)
        self._readable.unregister(agent.channel.fileno())
        agent.close()

    def _handles(self) -> Collection[AgentHandle]:
        """Returns the handles of all agents, which know whether their processes have ended."""
        self._note_exits()
        return self._agents.values()

    def _note_exits(self) -> None:
        """Finds out which agents' processes have ended. Usually none has, and the kernel is asked
        once for all of them."""
        if has_ended_child():
            for agent in self._agents.values():
                agent.process.poll()

    def _awaited_agents(self) -> list[AgentHandle]:
        there = [m for m in self._handles() if not m.is_lost()]
        return [m for m in there if m.hello is None or m.is_checking]

    def _active_agents(self) -> list[AgentHandle]:
        """Returns the agents of this generation that are there and have not reported."""
        self._note_exits()
        agents = [
            self._agents[node] for node in sorted(self._current_nodes) if node in self._agents
        ]
        return [m for m in agents if m.report is None and not m.is_lost() and not m.was_replaced]

    def _send_to_active(self, message: dict[str, Any]) -> None:
        for agent in self._active_agents():
            agent.channel.send(message)


def _taken(items: list[_T]) -> list[_T]:
    """Empties a list, and returns what was in it."""
    found = items[:]
    items.clear()
    return found
