"""A drill sends this process the real signal, once for each step planned."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from hpckit.supervisor.preemption_drill import PreemptionDrill


@pytest.fixture
def received() -> Iterator[list[int]]:
    found: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        found.append(number)

    before = signal.signal(signal.SIGUSR2, note)
    yield found
    signal.signal(signal.SIGUSR2, before)


def test_the_signal_comes_once_at_each_step(received: list[int]) -> None:
    drill, counts = PreemptionDrill([3, 5], begun_at=0), []
    for step in range(1, 8):
        drill.at_step(step)
        counts.append(len(received))
    assert counts == [0, 0, 1, 1, 2, 2, 2]
    assert set(received) == {signal.SIGUSR2}


def test_steps_done_again_after_a_resume_are_not_drilled_again(received: list[int]) -> None:
    drill = PreemptionDrill([3], begun_at=0)
    for step in (2, 3, 4, 2, 3, 4):
        drill.at_step(step)
    assert len(received) == 1


def test_a_step_that_was_not_logged_is_not_missed(received: list[int]) -> None:
    PreemptionDrill([3], begun_at=0).at_step(10)
    assert len(received) == 1


def test_what_an_earlier_submission_reached_is_not_played_again(received: list[int]) -> None:
    drill = PreemptionDrill([3, 5], begun_at=3)
    drill.at_step(4)
    assert received == []
    drill.at_step(5)
    assert len(received) == 1
