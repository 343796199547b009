"""Agents of many nodes, simulated by one process. They speak to a real supervisor as agents do:
each through the pipes of a process of its own, by `Channel`, with a heartbeat each second, and, in
place of the node's torchrun, through a connection to the rendezvous store.

In place of a node's agent the supervisor starts a `sleep`, which holds the pipes. It tells the
simulation its number, and this opens the other ends of the pipes through `/proc`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from hpckit.agent.agent import GenerationStart
from hpckit.agent.exit_report import ExitReport, NodeExit
from hpckit.agent.message_channel import Channel, HeartbeatThread, Message
from hpckit.hangs.hang_snapshot import (
    CollectiveCall,
    HangSnapshot,
    ProcessGroupState,
    ProcessState,
    StackFrame,
)
from hpckit.ipc.rendezvous_names import participant_name, rendezvous_id

RANKS = 8
"""Ranks of a node."""
STEP = 7
"""Number of steps that the ranks of all agents have finished."""


class SimulatedAgents:
    """The agents, by node. `pump` carries out what is due."""

    def __init__(self, announcements: Connection, run: str) -> None:
        """
        Args:
            announcements: the supervisor sends node and process id of each `sleep`.
            run: the name of the run.
        """
        self._announcements, self._run = announcements, run
        self._selector = selectors.DefaultSelector()
        self._selector.register(announcements, selectors.EVENT_READ, self._admit)
        self._agents: dict[int, _Agent] = {}
        self._heartbeats = HeartbeatThread()
        self._heartbeats.start()
        self.received: Counter[str] = Counter()
        """Messages that agents have received since the start, by kind."""
        self.met: Counter[int] = Counter()
        """Nodes that have met all others at the rendezvous store, by generation."""

    def __len__(self) -> int:
        return len(self._agents)

    def pump(self, within_s: float = 0.05) -> None:
        """Answers the messages that come within this time."""
        for key, _ in self._selector.select(within_s):
            key.data()

    def until(self, condition: Callable[[], bool], limit_s: float = 600.0) -> float:
        """Pumps until the condition holds, and returns the seconds that this took."""
        begun_s = time.monotonic()
        while not condition():
            assert time.monotonic() - begun_s < limit_s, "it never came true"
            self.pump()
        return time.monotonic() - begun_s

    def report_hang(self, node: int) -> None:
        """Has an agent report that its ranks hang."""
        agent = self._agents[node]
        message = {"kind": "hang", "attempt": 0, "silent_s": 60.0}
        agent.channel.send({**message, "generation": agent.start.generation})

    def lose(self, node: int) -> None:
        """Ends the process of an agent."""
        self._remove(self._agents[node])

    def close(self) -> None:
        for agent in list(self._agents.values()):
            self._remove(agent)
        self._heartbeats.close()
        self._selector.close()

    def _admit(self) -> None:
        try:
            node, pid = self._announcements.recv()
        except EOFError:  # the supervisor has ended
            self._selector.unregister(self._announcements)
            return
        if node in self._agents:
            self._remove(self._agents[node])
        agent = self._agents[node] = _Agent(node, pid)
        self._heartbeats.add(agent.channel)
        self._selector.register(agent.read_fd, selectors.EVENT_READ, lambda: self._read(agent))
        agent.say_hello()

    def _is_there(self, agent: _Agent) -> bool:
        return self._agents.get(agent.node) is agent

    def _read(self, agent: _Agent) -> None:
        if not self._is_there(agent):  # it has ended since the selector looked
            return
        for message in agent.channel.receive():
            self.received[message["kind"]] += 1
            self._carry_out(agent, message)
        if agent.channel.has_ended and self._is_there(agent):
            self._remove(agent)

    def _carry_out(self, agent: _Agent, message: Message) -> None:
        match message["kind"]:
            case "start":
                agent.start = GenerationStart(**message["start"])
                self._join(agent)
            case "ask":
                self._end(agent, NodeExit.LEFT)
            case "end":
                self._end(agent, NodeExit.STOPPED)
            case "look":
                agent.say_hello()
            case "examine":
                ranks = [s.record() for s in snapshots(agent.start.place, agent.start.nodes)]
                generation = agent.start.generation
                agent.channel.send({"kind": "examined", "generation": generation, "ranks": ranks})
            case "quit":
                self._remove(agent)

    def _end(self, agent: _Agent, how: NodeExit) -> None:
        self._leave(agent)
        report = asdict(ExitReport(agent.node, how, STEP, 0, None))
        generation = agent.start.generation
        agent.channel.send({"kind": "ended", "generation": generation, "report": report})

    def _join(self, agent: _Agent) -> None:
        """Joins the rendezvous of a generation, as `KnownNodesRendezvous` does."""
        start = agent.start
        agent.member = socket.create_connection((start.host, start.port))
        self._selector.register(
            agent.member, selectors.EVENT_READ, lambda: self._read_member(agent)
        )
        name = participant_name(rendezvous_id(self._run, start.generation), start.place)
        agent.member.sendall(start.token.encode() + b"\n")
        _ask(agent.member, do="name", name=name)
        _ask(agent.member, id=1, do="add", key="joined", by=1)

    def _read_member(self, agent: _Agent) -> None:
        if agent.member is None:  # it has left since the selector looked
            return
        data = agent.member.recv(1 << 16)
        if not data:
            self._leave(agent)
            return
        *lines, agent.unread = (agent.unread + data).split(b"\n")
        for answer in map(json.loads, lines):
            self._answered(agent, agent.member, answer)

    def _answered(self, agent: _Agent, member: socket.socket, answer: dict[str, Any]) -> None:
        match answer["id"]:
            case 1:
                if int(answer["value"]) == agent.start.nodes:
                    _ask(member, id=2, do="set", key="complete", value="")
                _ask(member, id=3, do="get", keys=["complete"])
            case 3:
                if agent.start.place == 0:
                    _ask(member, id=4, do="set", key="address", value="127.0.0.1:29500")
                _ask(member, id=5, do="get", keys=["address"])
            case 5:
                self.met[agent.start.generation] += 1
                _ask(member, id=6, do="get", keys=["next round"])

    def _leave(self, agent: _Agent) -> None:
        if agent.member is not None:
            self._selector.unregister(agent.member)
            agent.member.close()
            agent.member, agent.unread = None, b""

    def _remove(self, agent: _Agent) -> None:
        self._leave(agent)
        self._selector.unregister(agent.read_fd)
        self._heartbeats.remove(agent.channel)
        agent.close()
        del self._agents[agent.node]


class _Agent:
    """One agent."""

    def __init__(self, node: int, pid: int) -> None:
        self.node, self.pid = node, pid
        self.read_fd = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_CLOEXEC)
        self._write_fd = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY | os.O_CLOEXEC)
        self.channel = Channel(self.read_fd, self._write_fd)
        self.start: GenerationStart  # of the last generation
        self.member: socket.socket | None = None  # the connection to the rendezvous store
        self.unread = b""  # of it

    def say_hello(self) -> None:
        hello = {"kind": "hello", "host": f"n{self.node}", "pid": self.pid, "gpus": RANKS}
        self.channel.send({**hello, "launcher": None, "problems": [], "time": time.time()})

    def close(self) -> None:
        """Ends the process."""
        self.channel.close()
        os.close(self.read_fd)
        os.close(self._write_fd)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _ask(member: socket.socket, **request: Any) -> None:
    member.sendall(json.dumps(request).encode() + b"\n")


def snapshots(place: int, nodes: int) -> list[HangSnapshot]:
    """Returns what the ranks of a node are doing at a hang: rank 0 loads data, and the others wait
    for it in a collective of all ranks. Each is also in a group of its node, and in one with the
    same rank of all nodes."""
    first = place * RANKS
    return [_snapshot(rank, nodes * RANKS) for rank in range(first, first + RANKS)]


def _snapshot(rank: int, world: int) -> HangSnapshot:
    is_late = rank == 0
    first = rank - rank % RANKS
    groups = (
        ProcessGroupState("0", "default_pg", ((0, world, 1),), 100 - is_late),
        ProcessGroupState("1", "tp", ((first, first + RANKS, 1),), 700),
        ProcessGroupState("2", "dp", ((rank % RANKS, world, RANKS),), 300),
    )
    inner = ("next", "/home/u/data.py") if is_late else ("all_reduce", "/torch/c10d.py")
    stack = [StackFrame(inner[1], 88, inner[0])]
    stack += [StackFrame(f"/home/u/code/layer{i}.py", 10 + i, "forward") for i in range(12)]
    return HangSnapshot(
        rank=rank,
        host=f"n{rank // RANKS}",
        state=ProcessState.ALIVE,
        step=STEP,
        frames=tuple(stack),
        call=None if is_late else CollectiveCall("all_reduce", "0", "float32[4]"),
        groups=groups,
        is_overdue=True,
    )
