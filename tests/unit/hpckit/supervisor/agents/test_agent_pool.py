"""A supervisor's agents: real processes that play theirs, and some badly."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpckit.agent.agent import GenerationStart
from hpckit.agent.exit_report import NodeExit
from hpckit.events.event_log import EventLog, read_events
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.supervisor.agents import agent_pool as module
from hpckit.supervisor.agents.agent_pool import AgentPool
from hpckit.supervisor.node_selection.node_choice import NodeRequirement
from hpckit.supervisor.node_selection.node_wait import wait_for_nodes
from hpckit.system.child_processes import Process, kill_all, spawn_piped
from tests.stopped_processes import stop
from tests.unit.hpckit.specs_and_processes import is_gone, make_spec, until

END_S = 120.0  # within which an agent that is well ends its generation on a busy machine

# An agent whose workers train for ever, and end as they are told.
AGENT = """
import os, sys, time
from hpckit.agent.message_channel import Channel
node, how = int(sys.argv[1]), sys.argv[2]
if how == "absent": sys.exit(1)
if how == "slow": time.sleep(3)
channel, generation = Channel(os.dup(0), os.dup(1)), 0
def ended(exit):
    report = dict(node=node, exit=exit, step=generation, attempts=0, error=None)
    channel.send(dict(kind="ended", generation=generation, report=report))
hello = dict(kind="hello", pid=os.getpid(), gpus=0, time=time.time(), problems=[])
if how == "ill": hello["problems"] = ["disk full"]
if how == "early": hello["time"] += 100
if how == "late": hello["time"] -= 100
channel.send(hello)
while not channel.is_over:
    for message in channel.receive():
        match message["kind"]:
            case "start":
                generation = message["start"]["generation"]
                if how == "failing": ended("failed")
                if how == "breaking": ended("failed")
                if how == "falling":
                    channel.send(dict(kind="agent_killed"))
                    how, hello["pid"] = "good", -1
                    channel.send(hello)
            case "look":
                if how == "breaking":
                    time.sleep(0.5)
                    hello["problems"] = ["broken"]
                channel.send(hello)
            case "ask": ended("left")
            case "end" if how != "deaf": ended("stopped")
            case "quit" if how != "deaf":
                end = time.monotonic() + (3.0 if how == "draining" else 0.0)
                while time.monotonic() < end:
                    channel.send_heartbeat()
                    time.sleep(0.01)
                print("through without", *message["lost"], file=sys.stderr)
                sys.exit()
    channel.send_heartbeat()
    time.sleep(0.01)
"""


class Parts:
    """A pool, whose agents are as `how` says, by node."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.how = folder, dict.fromkeys(range(9), "good")
        self.started: list[Process] = []
        self.events = EventLog(folder / "events.jsonl")
        self.pool = AgentPool(self._start, self.events, health=make_spec().health)

    def _start(self, node: int) -> Process:
        command = [sys.executable, "-c", AGENT, str(node), self.how[node]]
        process = spawn_piped(command, os.environ, self.folder / "errors", is_written_to=True)
        self.started.append(process)
        return process

    def begin(self, generation: int, *nodes: int) -> set[int]:
        """Those that are there."""
        self.pool.start_agents(nodes, generation)
        there = set(
            wait_for_nodes(
                self.pool, NodeRequirement(len(nodes), 1, lambda count: True), (), lambda: False
            )
        )
        start = GenerationStart(generation, len(nodes), 0, "127.0.0.1", 1, "token", "cpu", "", 1)
        self.pool.start_generation(dict.fromkeys(there, start))
        return there

    def until_over(self) -> None:
        def is_over() -> bool:
            self.pool.read_messages()
            return not self.pool.is_running()

        until(is_over)

    def exits(self) -> list[NodeExit]:
        return [report.exit for report in self.pool.reports()]


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parts]:
    monkeypatch.setattr(module, "QUIT_S", 1.0)
    found = Parts(tmp_path)
    with found.pool:
        yield found
    assert all(is_gone(process.pid) for process in found.started), "nobody is left behind"


def test_agents_stay_for_the_next_generation(parts: Parts) -> None:
    for generation in (1, 2):
        assert parts.begin(generation, 0, 1) == {0, 1}
        assert parts.pool.is_running()
        parts.pool.ask(WorkerRequest.PREEMPT)
        parts.until_over()
        assert parts.exits() == [NodeExit.LEFT] * 2
        assert [report.step for report in parts.pool.reports()] == [generation] * 2
        assert not parts.pool.has_failed()
    assert len(parts.started) == 2
    found = [event["node"] for event in read_events(parts.folder / "events.jsonl")]
    assert found == [0, 1]


def test_a_generation_may_have_more_nodes_or_fewer(parts: Parts) -> None:
    for generation, nodes in enumerate(((0, 1), (0,), (0, 1, 2)), start=1):
        assert parts.begin(generation, *nodes) == set(nodes)
        parts.pool.end_generation(END_S)
        assert parts.exits() == [NodeExit.STOPPED] * len(nodes)
    assert len(parts.started) == 3


def test_an_agent_that_has_still_to_write_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpckit.agent.message_channel.SILENT_S", 2.0)
    parts = Parts(tmp_path)
    parts.how[0] = "draining"
    parts.pool = AgentPool(parts._start, parts.events, drain_s=60.0)
    with parts.pool:
        assert parts.begin(1, 0) == {0}
    assert (tmp_path / "errors").read_text() == "through without\n"


def test_those_that_end_are_told_of_the_nodes_that_were_lost_last(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    with parts.pool:
        assert parts.begin(1, 0, 1, 2) == {0, 1, 2}
        parts.started[1].kill()
        until(lambda: parts.pool.lost() == [1])
        parts.pool.end_generation(END_S)
        start = GenerationStart(2, 2, 0, "127.0.0.1", 1, "token", "cpu", "", 1)
        assert parts.begin(2, 0, 1, 2) == {0, 1, 2}
        parts.pool.start_generation({2: start, 0: replace(start, place=1)})
        parts.started[0].kill()
        until(lambda: parts.pool.lost() == [0])
        parts.pool.end_generation(END_S)
        parts.how[0] = "absent"
        parts.pool.start_agents((0, 2), 3)  # which does not begin
    told = (tmp_path / "errors").read_text().splitlines()
    assert sorted(set(told)) == ["through without 1"]


def test_a_killed_agent_is_lost_and_has_a_successor(parts: Parts) -> None:
    parts.begin(1, 0, 1)
    parts.started[1].send_signal(signal.SIGKILL)
    until(lambda: parts.pool.lost() == [1])
    assert parts.pool.is_running(), "the other one is there"
    parts.pool.end_generation(END_S)
    assert not parts.pool.is_running()
    assert parts.exits() == [NodeExit.STOPPED]
    parts.pool.start_agents((0, 1), 2)
    assert parts.pool.may_return(), "its node may be well"
    assert parts.begin(2, 0, 1) == {0, 1}
    assert parts.pool.lost() == []
    assert len(parts.started) == 3


def test_one_whose_node_has_another_at_once_is_not_lost_but_what_it_had_begun_is(
    parts: Parts,
) -> None:
    parts.how[1] = "falling"
    parts.begin(1, 0, 1)

    def was_replaced() -> bool:
        parts.pool.read_messages()
        return parts.pool.replaced() == [1]

    until(was_replaced)
    assert parts.pool.lost() == []
    assert parts.pool.is_running(), "the other one is there"
    parts.pool.end_generation(END_S)
    assert parts.exits() == [NodeExit.STOPPED]
    assert parts.begin(2, 0, 1) == {0, 1}
    assert parts.pool.replaced() == []
    assert len(parts.started) == 2
    parts.pool.end_generation(END_S)
    assert parts.exits() == [NodeExit.STOPPED] * 2


def test_one_that_is_silent_for_long_is_lost_though_it_runs(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.begin(1, 0, 1)
    monkeypatch.setattr("hpckit.agent.message_channel.SILENT_S", 2.0)
    stop(parts.started[0].pid)

    def is_lost() -> bool:
        parts.pool.read_messages()
        return parts.pool.lost() == [0]

    until(is_lost)
    monkeypatch.setattr("hpckit.agent.message_channel.SILENT_S", 10.0)
    parts.pool._agents[0].channel.close()  # as if it were for good
    parts.pool.start_agents((0, 1), 2)
    assert parts.pool.expected() == 1
    assert not parts.pool.may_return(), "it was waited for already"
    assert parts.begin(2, 0, 1) == {0, 1}
    assert is_gone(parts.started[0].pid), "nothing of it may write any more"


def test_one_that_is_suspect_is_lost_sooner_and_only_if_it_is_silent(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpckit.agent.message_channel.SILENT_S", 3600.0)
    parts.pool.start_agents((0, 1), 1)

    def are_there() -> bool:
        parts.pool.read_messages()
        return len(parts.pool.hellos()) == 2

    until(are_there)
    start = GenerationStart(1, 2, 0, "127.0.0.1", 1, "token", "cpu", "", 1)
    parts.pool.start_generation({0: replace(start, place=1), 1: start})
    parts.pool.suspect([0, 1, 7])
    stop(parts.started[0].pid)

    def is_lost() -> bool:
        parts.pool.read_messages()
        return parts.pool.lost() == [0]

    until(is_lost)
    os.kill(parts.started[0].pid, signal.SIGCONT)
    until(lambda: not is_lost())
    parts.pool.suspect([1])
    parts.pool.start_agents((0, 1), 2)
    assert not any(member.channel.is_suspect for member in parts.pool._agents.values())


def test_who_waited_for_something_else_has_lost_nobody(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a disk."""
    parts.begin(1, 0, 1)
    monkeypatch.setattr("hpckit.agent.message_channel.SILENT_S", 1.5)
    time.sleep(2.5)
    assert parts.pool.lost() == []
    parts.pool.read_messages()
    assert parts.pool.is_running()


def test_one_that_begins_slowly_is_waited_for(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpckit.agent.message_channel.SILENT_S", 2.0)
    parts.how[1] = "slow"
    assert parts.begin(1, 1) == {1}


def test_one_that_does_not_come_is_missing(parts: Parts) -> None:
    parts.how[1] = "absent"
    assert parts.begin(1, 0, 1) == {0}
    assert parts.pool.lost() == []
    assert parts.pool.is_running()


def test_one_that_does_not_end_its_generation_is_killed(parts: Parts) -> None:
    parts.how[1] = "deaf"
    parts.begin(1, 0, 1)
    parts.pool.end_generation(0.5)
    assert parts.exits() == [NodeExit.STOPPED]
    assert parts.pool.lost() == [1]


def test_one_that_does_not_quit_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIT_S", 0.5)
    found = Parts(tmp_path)
    found.how[0] = "deaf"
    with found.pool:
        found.begin(1, 0)
    assert found.started[0].returncode == -signal.SIGKILL


def test_a_node_that_fails_is_seen_and_reports_of_earlier_generations_are_not(
    parts: Parts,
) -> None:
    parts.how[0] = "failing"
    parts.begin(1, 0, 1)
    parts.pool.start_agents((0, 1), 2)  # what comes of the first one comes too late
    time.sleep(0.3)
    parts.pool.read_messages()
    assert parts.pool.reports() == ()
    parts.pool.start_generation(
        {0: GenerationStart(2, 2, 0, "127.0.0.1", 1, "token", "cpu", "", 1)}
    )

    def has_failed() -> bool:
        parts.pool.read_messages()
        return parts.pool.has_failed()

    until(has_failed)
    assert parts.exits() == [NodeExit.FAILED]


def test_nodes_that_are_not_healthy_are_left_out(parts: Parts) -> None:
    parts.how |= {0: "ill", 2: "early", 3: "late"}
    assert parts.begin(1, 0, 1, 2, 3) == {1}
    found = parts.pool.unhealthy()
    assert found.keys() == {0, 2, 3}
    assert found[0] == ["disk full"]
    assert "ahead of the supervisor's" in found[2][0]
    assert "behind the supervisor's" in found[3][0]
    assert parts.pool.lost() == []


def test_a_node_that_was_measured_as_slow_is_left_out_for_the_rest_of_the_job(
    parts: Parts,
) -> None:
    assert parts.begin(1, 0, 1, 2) == {0, 1, 2}
    parts.pool.leave_out(1, ["memory is slow"])
    assert parts.begin(2, 0, 1, 2) == {0, 2}
    assert parts.begin(3, 0, 1, 2) == {0, 2}
    assert parts.pool.unhealthy() == {1: ["memory is slow"]}


def test_one_that_has_failed_says_how_its_node_is_before_it_takes_part_again(
    parts: Parts,
) -> None:
    parts.how[0] = "breaking"
    assert parts.begin(1, 0, 1) == {0, 1}

    def has_failed() -> bool:
        parts.pool.read_messages()
        return parts.pool.has_failed()

    until(has_failed)
    parts.pool.end_generation(END_S)
    assert parts.begin(2, 0, 1) == {1}
    assert parts.pool.unhealthy() == {0: ["broken"]}


def test_one_that_stood_by_looks_at_its_node_before_it_takes_part(parts: Parts) -> None:
    parts.how[1] = "breaking"
    parts.pool.start_agents((0, 1), 1)

    def are_there() -> bool:
        parts.pool.read_messages()
        return len(parts.pool.hellos()) == 2

    until(are_there)
    parts.pool.start_generation(
        {0: GenerationStart(1, 1, 0, "127.0.0.1", 1, "token", "cpu", "", 1)}
    )
    parts.pool.end_generation(END_S)
    assert parts.begin(2, 0, 1) == {0}
    assert parts.pool.unhealthy() == {1: ["broken"]}


def test_a_node_without_an_agent_is_tried_again_while_the_others_train(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_S", 0.2)
    parts.how[1] = "absent"
    assert parts.begin(1, 0, 1) == {0}
    parts.pool.start_generation(
        {0: GenerationStart(1, 1, 0, "127.0.0.1", 1, "token", "cpu", "", 1)}
    )  # without it

    def is_tried(times: int) -> bool:
        parts.pool.read_messages()
        parts.pool.restart_missing()
        return len(parts.started) == 2 + times

    until(lambda: is_tried(1))
    parts.how[1] = "good"
    until(lambda: is_tried(2))
    until(lambda: is_tried(2) and len(parts.pool.hellos()) == 2)
    assert parts.pool.is_running()
    assert parts.begin(2, 0, 1) == {0, 1}
    assert len(parts.started) == 4, "it is the one that came back"
    parts.started[3].kill()
    until(lambda: is_tried(2) and parts.pool.lost() == [1])  # who takes part is not tried again


def test_tries_are_farther_and_farther_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    retry, tries = module.NodeRetry(), []
    for now_s in range(1000):
        if retry.is_due():
            tries.append(now_s)
    assert tries == [10, 30, 70, 150, 310, 610, 910]


def test_an_agent_that_never_came_is_told_from_one_that_was_lost(parts: Parts) -> None:
    parts.how |= {1: "absent", 2: "slow"}
    assert parts.begin(1, 0, 1, 2) == {0, 2}
    assert parts.pool.absent(3600.0) == [1]
    kill_all([parts.started[0]])
    parts.pool.start_agents(range(4), 2)
    assert parts.pool.absent(0.0) == [1, 3], "and the last one has had its time"
