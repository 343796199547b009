"""The examination of a node's ranks, without ranks."""

from __future__ import annotations

import threading
from collections.abc import Collection

import pytest

from hpckit.agent.hangs import hang_examination
from hpckit.agent.hangs.hang_examination import Collected, HangExamination
from tests.unit.hpckit.hangs.snapshots import elsewhere
from tests.unit.hpckit.specs_and_processes import until


def kinds(examination: HangExamination) -> list[str]:
    return [str(message["kind"]) for message in examination.messages()]


def test_ranks_are_ended_after_the_finding_of_the_supervisor() -> None:
    may_end, asked = threading.Event(), []

    def collect(overdue: Collection[int], signalled: Collection[int]) -> Collected:
        asked.append((set(overdue), set(signalled)))
        may_end.wait(60)
        return [elsewhere(3)], []

    it = HangExamination(collect)
    it.raise_alarm({7}, {7, 8}, 2, 5.5)
    assert it.messages() == [{"kind": "hang", "attempt": 2, "silent_s": 5.5}]
    it.examine()  # the supervisor asks all nodes: it is under way
    it.conclude("rank 3 is stuck")
    assert not it.is_decided(), "the snapshots are not there yet"
    may_end.set()
    until(it.is_decided)
    (message,) = it.messages()
    assert message == {"kind": "examined", "ranks": [elsewhere(3).record()]}
    assert it.messages() == []
    assert asked == [({7}, {7, 8})]
    it.reset()
    assert not it.has_alarm
    assert not it.is_decided()


def test_a_node_without_an_alarm_answers_and_ends_nothing() -> None:
    it = HangExamination(lambda overdue, signalled: ([], []))
    it.examine()
    until(lambda: "examined" in kinds(it))
    it.conclude("rank 3 of another node is stuck")
    assert not it.is_decided()


def test_ranks_that_hang_during_an_examination_for_another_node_are_a_part_of_it() -> None:
    may_end = threading.Event()
    asked: list[tuple[set[int], set[int]]] = []

    def collect(overdue: Collection[int], signalled: Collection[int]) -> Collected:
        asked.append((set(overdue), set(signalled)))
        may_end.wait(60)
        asked.append((set(overdue), set(signalled)))
        return [], []

    it = HangExamination(collect)
    it.examine()
    until(lambda: len(asked) == 1)
    it.raise_alarm({7}, {7, 8}, 0, 5.5)
    may_end.set()
    until(lambda: len(asked) == 2)
    assert asked == [(set(), set()), ({7}, {7, 8})]
    until(lambda: "examined" in kinds(it))
    it.conclude("rank 3 is stuck")
    assert it.is_decided()


def test_a_supervisor_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hang_examination, "DECISION_S", 0.0)

    def collect(overdue: Collection[int], signalled: Collection[int]) -> Collected:
        raise OSError("the disk is full")

    it = HangExamination(collect)
    it.raise_alarm({7}, {7}, 0, 5.5)
    until(it.is_decided)
    assert it.finding is None
    until(lambda: "examined" in kinds(it))
    assert it.files == []
