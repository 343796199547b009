"""The inquiry into a hang, with a stand-in for the agents."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from hpckit.events.event_log import EventLog, read_events
from hpckit.rundir.directory import RunDir
from hpckit.supervisor.agents import hang_inquiry
from hpckit.supervisor.agents.agent_pool import AgentPool
from hpckit.supervisor.agents.hang_inquiry import HangInquiry
from hpckit.system.atomic_files import read_json
from tests.unit.hpckit.hangs.snapshots import elsewhere, group, waiting

RANKS = [waiting(0, group(range(2), 7)).record(), elsewhere(1, group(range(2), 6)).record()]


class Agents:
    """Two agents of one rank each."""

    generation_size = 2

    def __init__(self) -> None:
        self.hangs: list[tuple[int, int, float]] = []
        self.examined: list[tuple[int, list[Any]]] = []
        self.asked = 0
        self.told: list[tuple[set[int], str]] = []

    def take_hangs(self) -> list[tuple[int, int, float]]:
        found, self.hangs = self.hangs, []
        return found

    def take_examined(self) -> list[tuple[int, list[Any]]]:
        found, self.examined = self.examined, []
        return found

    def active_nodes(self) -> frozenset[int]:
        return frozenset((0, 1))

    def ask_examination(self) -> None:
        self.asked += 1

    def send_finding(self, nodes: Collection[int], words: str) -> None:
        self.told.append((set(nodes), words))


def test_all_nodes_are_asked_once_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, agents = RunDir(tmp_path), Agents()
    run.generation_logs(4).mkdir(parents=True)
    with EventLog(run.events) as events:
        inquiry = HangInquiry(cast("AgentPool", agents), events, run, 4, 1)
        inquiry.poll()
        agents.hangs = [(0, 1, 60.0)]
        inquiry.poll()
        agents.examined = [(0, RANKS[:1])]
        agents.hangs = [(1, 1, 60.0)]
        inquiry.poll()
        assert (agents.asked, agents.told) == (1, [])
        agents.examined = [(1, [*RANKS[1:], {"rank": "no snapshot"}])]
        inquiry.poll()
        ((nodes, words),) = agents.told
        assert nodes == {0, 1}
        agents.hangs = [(1, 3, 60.0)]  # its watch is later, and it has counted other attempts
        inquiry.poll()
        assert agents.told[1:] == [({1}, words)]
        monkeypatch.setattr(hang_inquiry, "INQUIRY_S", 0.0)
        agents.hangs = [(0, 1, 0.0)]  # it has advanced since: after a restart by another node
        inquiry.poll()
        inquiry.close()
    first, second = read_events(run.events)
    assert (first["cause"], first["culprits"], first["text"]) == ("stuck", [1], words)
    assert "rank 1 on n0 has not entered it: it is in next, data.py:88" in words
    assert (first["examined"], first["waiting"], first["attempt"]) == (2, 1, 1)
    assert len(read_json(Path(first["snapshots"]))["ranks"]) == 2
    assert (second["examined"], second["attempt"]) == (0, 1)
    assert "a node that has not answered" in second["text"]


def test_a_hang_after_a_slow_step_is_inquired_into(tmp_path: Path) -> None:
    run, agents = RunDir(tmp_path), Agents()
    run.generation_logs(4).mkdir(parents=True)
    slow = (waiting(0, group(range(2), 7)), elsewhere(1, group(range(2), 6)))
    answers = ([replace(one, has_advanced=True).record() for one in slow], RANKS)
    with EventLog(run.events) as events:
        inquiry = HangInquiry(cast("AgentPool", agents), events, run, 4, 1)
        for ranks in answers:
            agents.hangs = [(0, 1, 60.0)]
            inquiry.poll()
            agents.examined = [(0, ranks[:1]), (1, ranks[1:])]
            inquiry.poll()
    assert agents.asked == 2
    assert [event["cause"] for event in read_events(run.events)] == ["slow", "stuck"]
