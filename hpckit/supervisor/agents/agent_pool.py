"""The agents of a submission, as their supervisor sees them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from hpckit.agent.agent import GenerationStart
from hpckit.agent.exit_report import ExitReport, NodeExit, load_report
from hpckit.agent.message_channel import Channel, HeartbeatThread, Message
from hpckit.agent.node_health.health_rules import clock_problem, skew_s
from hpckit.config.spec import HealthSpec
from hpckit.events.event_log import EventLog
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.system.child_processes import Process, kill_all

log = logging.getLogger(__name__)

TICK_S = 0.05
QUIT_S = 5.0
RECALL_S, MOST_RECALL_S = 10.0, 300.0
"""Seconds until a node without an agent is tried again; each time twice as many."""
_WELL = (NodeExit.DONE, NodeExit.LEFT)


class AgentHandle:
    """One agent."""

    def __init__(self, node: int, process: Process, health: HealthSpec | None) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.node, self.process = node, process
        self._health, self._asked = health, time.time()  # when it was told to look at its node
        self._begun_s, self.has_come = time.monotonic(), False
        self.problems: list[str] = []  # for which its node is to be left out
        self.is_looking = False  # at its node once more, and says hello again
        self.has_fallen = False  # it was killed, and another has taken its place
        self.channel = Channel(process.stdout.fileno(), process.stdin.fileno())
        self.hello: Message | None = None
        self.report: ExitReport | None = None  # of the present generation
        self.signals: list[str] = []  # that it got, and nobody has looked at

    @property
    def is_there(self) -> bool:
        """It has said so, and is not lost."""
        return self.hello is not None and not self.is_lost()

    def is_lost(self) -> bool:
        """Its process has ended, or it was silent for too long since it said that it is there."""
        channel = self.channel
        is_silent = channel.has_ended if self.hello is None else channel.is_over
        return is_silent or self.process.poll() is not None

    def is_absent(self, within_s: float) -> bool:
        """It has never said that it is there, and has ended, or had so many seconds for it."""
        is_late = time.monotonic() - self._begun_s >= within_s
        return not self.has_come and (is_late or self.is_lost())

    def hear(self, generation: int) -> None:
        for message in self.channel.receive():
            match message.get("kind"):
                case "agent_killed":
                    self._fall()
                case "hello":
                    if self.hello is not None and self.hello["pid"] != message["pid"]:
                        self._fall()
                    self.hello, self.is_looking, self.has_come = message, False, True
                    self.problems = [*message.get("problems", ()), *self._clock_problems(message)]
                case "signal":
                    self.signals.append(str(message["name"]))
                case "ended" if message["generation"] == generation:
                    self.report = load_report(message["report"])

    def _fall(self) -> None:
        """What it had begun has ended with it."""
        self.has_fallen, self.is_looking, self.hello = True, False, None

    def look_again(self) -> None:
        """Have it look at its node once more, and say hello then."""
        if self.hello is not None:
            self.is_looking, self._asked = True, time.time()
            self.channel.send({"kind": "look"})

    def _clock_problems(self, hello: Message) -> list[str]:
        """It was said after it was asked for, and before now: however long it took."""
        if self._health is None or "time" not in hello:
            return []
        skew = skew_s(float(hello["time"]), self._asked, time.time())
        problem = clock_problem(skew, self._health)
        return [problem] if problem else []

    def close(self) -> None:
        """Kill it, and let go of the pipes."""
        kill_all([self.process])
        self.channel.close()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


class NodeRetry:
    """When a node is to be tried again."""

    def __init__(self) -> None:
        self._wait_s = RECALL_S
        self._due_s = time.monotonic() + RECALL_S

    def is_due(self) -> bool:
        """And then not soon again."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        self._wait_s = min(2 * self._wait_s, MOST_RECALL_S)
        self._due_s = now_s + self._wait_s
        return True


class AgentPool:
    """Agents by node, for as long as the `with` block lasts. For one thread."""

    def __init__(
        self,
        start: Callable[[int], Process],
        events: EventLog,
        drain_s: float | None = None,
        health: HealthSpec | None = None,
    ) -> None:
        """
        Args:
            start: the agent of a node; its standard input and output are pipes.
            drain_s: seconds for each agent, at the end, to have its node's checkpoint services
                write what they hold. None: they are none of its affair.
            health: how far a node's clock may be off; None: as far as it likes.
        """
        self._start, self._events, self._drain_s = start, events, drain_s
        self._health = health
        self._members: dict[int, AgentHandle] = {}
        self._now: frozenset[int] = frozenset()  # the nodes of this generation
        self._places: dict[int, int] = {}  # nodes, by their place among these
        self._gone: set[int] = set()  # places of nodes that were lost since
        self._silent: set[int] = set()  # nodes that fell silent in the generation before
        self._known: set[int] = set()  # nodes on which an agent has come
        self._generation = 0
        self._recalls: dict[int, NodeRetry] = {}

    def __enter__(self) -> AgentPool:
        self._pulse = HeartbeatThread()
        return self

    def __exit__(self, *_: object) -> None:
        """Have all agents end; who does not, or has not begun yet, is killed."""
        self._note_gone()
        quit_ = {"kind": "quit", "drain_s": self._drain_s, "lost": sorted(self._gone)}
        for member in self._members.values():
            member.channel.send(quit_)
        deadline = time.monotonic() + (self._drain_s or 0.0) + QUIT_S
        while any(m.is_there for m in self._members.values()):
            self.tick()  # who is not listened to looks silent
            if time.monotonic() > deadline:
                break
            time.sleep(TICK_S)
        self._pulse.close()
        for member in self._members.values():
            member.close()

    def call(self, nodes: Iterable[int], generation: int) -> None:
        """Have an agent on each of these nodes, for this generation. Those that have failed, or
        stood by for who knows how long, look at their nodes once more."""
        self._note_gone()
        took_part, self._now, self._generation = self._now, frozenset[int](), generation
        self._silent.clear()
        self._recalls.clear()
        for node in sorted(nodes):
            member = self._members.get(node)
            if member is not None and member.is_lost():
                if member.process.poll() is None:
                    self._silent.add(node)
                self._members.pop(node).close()
            if node not in self._members:
                self._enlist(node)
            elif self._members[node].has_fallen:
                self._members[node].has_fallen = False  # and its successor says hello by itself
            elif took_part and (node not in took_part or self._has_failed(node)):
                self._members[node].look_again()
            self._members[node].report = None
            self._members[node].channel.is_suspect = False

    def recall(self) -> None:
        """Have agents again on nodes that take no part, if they are back: the next generation
        finds them with all their imports done."""
        for node, member in list(self._members.items()):
            if node in self._now or not member.is_lost():
                continue
            recall = self._recalls.setdefault(node, NodeRetry())
            if recall.is_due():
                self._members.pop(node).close()
                self._enlist(node)

    def hellos(self) -> dict[int, Message]:
        """What each agent that is there has said of itself, by node, if the node is healthy."""
        known = [m for m in self._members.values() if m.is_there and not m.is_looking]
        return {m.node: m.hello for m in known if m.hello is not None and not m.problems}

    def unhealthy(self) -> dict[int, list[str]]:
        """Why nodes whose agents are there are to be left out."""
        return {m.node: m.problems for m in self._members.values() if m.is_there and m.problems}

    def absent(self, within_s: float) -> list[int]:
        """Nodes on which none has ever come: these have ended, or had so many seconds for it."""
        absent = {node for node, member in self._members.items() if member.is_absent(within_s)}
        return sorted(absent - self._known)

    def expected(self) -> int:
        """How many agents are there that have not said yet how their nodes are."""
        return len(self._awaited())

    def may_return(self) -> bool:
        """Whether one of these is on a node that had not just fallen silent."""
        return any(member.node not in self._silent for member in self._awaited())

    def is_looking(self) -> bool:
        """Whether an agent looks at its node once more."""
        return any(m.is_looking and not m.is_lost() for m in self._members.values())

    def begin(self, starts: Mapping[int, GenerationStart]) -> None:
        """Tell each node that takes part what to start; the others stand by."""
        self._now = frozenset(starts)
        self._places = {start.place: node for node, start in starts.items()}
        self._gone = set()
        for node, start in starts.items():
            self._members[node].channel.send({"kind": "start", "start": asdict(start)})

    def tick(self) -> None:
        """Hear what there is to hear."""
        for member in self._members.values():
            member.hear(self._generation)
        self._known |= {node for node, member in self._members.items() if member.has_come}

    def signals(self) -> set[str]:
        """Names of the signals that agents got since the last call."""
        found = {name for member in self._members.values() for name in member.signals}
        for member in self._members.values():
            member.signals.clear()
        return found

    def lost(self) -> list[int]:
        """Nodes of this generation that are gone, and have not reported."""
        gone = [n for n in self._now if n not in self._members or self._members[n].is_lost()]
        return sorted(node for node in gone if self.report(node) is None)

    def fallen(self) -> list[int]:
        """Nodes of this generation that are there, without what their agents had begun: these were
        killed, and have not reported."""
        there = sorted(node for node in self._now - set(self.lost()) if self.report(node) is None)
        return [node for node in there if self._members[node].has_fallen]

    def is_under_way(self) -> bool:
        """Whether a node that is not lost has not reported yet."""
        return bool(self._here())

    def has_failed(self) -> bool:
        """Whether a node's part is over for good."""
        return any(report.exit not in _WELL for report in self.reports())

    def _has_failed(self, node: int) -> bool:
        report = self.report(node)
        return report is not None and report.exit is NodeExit.FAILED

    def report(self, node: int) -> ExitReport | None:
        member = self._members.get(node)
        return member.report if member is not None else None

    def reports(self) -> tuple[ExitReport, ...]:
        """Of this generation, by node."""
        found = (self.report(node) for node in sorted(self._now))
        return tuple(report for report in found if report is not None)

    def _note_gone(self) -> None:
        lost = self.lost()
        self._gone |= {place for place, node in self._places.items() if node in lost}

    def suspect(self, places: Iterable[int]) -> None:
        """Of nodes in these places, something has ended that ends with them: those that say no more
        are lost sooner."""
        for place in places:
            member = self._members.get(self._places.get(place, -1))
            if member is not None:
                member.channel.is_suspect = True

    def ask(self, request: WorkerRequest) -> None:
        """Have all workers of this generation save and leave."""
        self._tell({"kind": "ask", "request": request.name})

    def end(self, within_s: float) -> None:
        """End the generation; an agent that does not, in so long, is killed."""
        self._tell({"kind": "end"})
        deadline = time.monotonic() + within_s
        while self._here() and time.monotonic() < deadline:
            self.tick()
            time.sleep(TICK_S)
        for member in self._here():
            log.error("node %d does not answer: its agent is killed", member.node)
            kill_all([member.process])

    def _enlist(self, node: int) -> None:
        process = self._start(node)
        self._members[node] = AgentHandle(node, process, self._health)
        self._pulse.of([member.channel for member in self._members.values()])
        self._events.emit("agent_started", generation=self._generation, node=node, pid=process.pid)

    def _awaited(self) -> list[AgentHandle]:
        there = [m for m in self._members.values() if not m.is_lost()]
        return [m for m in there if m.hello is None or m.is_looking]

    def _here(self) -> list[AgentHandle]:
        """Agents of this generation that are there and have not reported."""
        members = [self._members[node] for node in sorted(self._now) if node in self._members]
        return [m for m in members if m.report is None and not m.is_lost() and not m.has_fallen]

    def _tell(self, message: dict[str, Any]) -> None:
        for member in self._here():
            member.channel.send(message)
