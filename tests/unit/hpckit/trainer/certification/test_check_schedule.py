"""When computations are checked again, by the cost of a check and the events of the run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.events.schema import CheckpointCertified, Event, WrongComputation
from hpckit.trainer.certification.check_schedule import (
    CheckHistory,
    due_from,
    history_of,
    least_steps,
)
from hpckit.trainer.certification.doubtful_checkpoints import doubtful_steps, doubts_about


def passed(step: int, next_step: int) -> CheckpointCertified:
    return CheckpointCertified(
        step=step, how="bits", tensors=1, seconds=1.0, step_s=1.0, next_step=next_step
    )


def failed(good_step: int, step: int) -> WrongComputation:
    return WrongComputation(
        step=step,
        good_step=good_step,
        ranks=[1],
        hosts=["n1"],
        nodes=[1],
        tensors=["model.weight"],
        is_persistent=True,
        is_excluded=True,
        what="rank 1",
    )


@given(check_s=st.floats(1e-3, 1e3), step_s=st.floats(1e-3, 1e3))
def test_checks_take_at_most_a_hundredth_of_the_time(check_s: float, step_s: float) -> None:
    steps = least_steps("auto", check_s, step_s)
    assert check_s <= 0.01 * step_s * steps * (1 + 1e-9)
    assert steps == 1 or check_s > 0.01 * step_s * (steps - 1) * (1 - 1e-9)
    assert least_steps(7, check_s, step_s) == 7


@pytest.mark.parametrize(
    ("events", "history"),
    [
        ([], CheckHistory()),
        ([passed(10, 300)], CheckHistory(10, 300, 0)),
        ([passed(10, 300), failed(10, 300)], CheckHistory(10, 0, 1)),
        ([failed(0, 5), failed(0, 5)], CheckHistory(-1, 0, 2)),
        ([failed(0, 5), passed(5, 40)], CheckHistory(5, 40, 0)),
    ],
)
def test_the_history_is_that_of_the_events(events: list[Event], history: CheckHistory) -> None:
    assert history_of(events) == history


def test_an_attempt_before_the_last_check_checks_its_first_save() -> None:
    assert due_from(CheckHistory(10, 300), 200) == 300
    assert due_from(CheckHistory(200, 300), 100) == 0
    assert due_from(CheckHistory(), 0) == 0


def test_checkpoints_since_the_last_good_step_are_doubtful() -> None:
    found = doubtful_steps([passed(10, 20), failed(10, 30), passed(20, 50), failed(20, 50)])
    assert [tuple(one) for one in found] == [(10, 30), (20, 50)]
    doubts = {step: doubts_about(found, step, 0) for step in (10, 11, 30, 31, 50, 51)}
    assert doubts == {
        10: None,
        11: found[0],
        30: found[0],
        31: found[1],
        50: found[1],
        51: None,
    }


def test_what_was_trained_after_a_difference_is_not_doubtful_for_it() -> None:
    found = doubtful_steps([failed(10, 30), failed(20, 50)])
    assert doubts_about(found, 20, 1) is None
    assert doubts_about(found, 25, 1) == found[1]
    assert doubts_about(found, 25, 2) is None
