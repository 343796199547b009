"""The loss scale follows the overflows, and is a part of the state where it is used."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpckit.trainer.errors import TrainingError
from hpckit.trainer.precision.loss_scale import FIRST, INTERVAL, LEAST, LossScale

FINE, OVERFLOW = torch.tensor(1.0), torch.tensor(torch.inf)


class Counting(torch.optim.SGD):
    def __init__(self) -> None:
        super().__init__([torch.zeros(1)], lr=1.0)
        self.steps = 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.steps += 1


@given(overflows=st.lists(st.booleans(), max_size=20))
def test_each_overflow_costs_a_step_and_halves_the_scale(overflows: list[bool]) -> None:
    scale, optimizer = LossScale(is_used=True), Counting()
    for overflow in overflows:
        scale.step(optimizer, OVERFLOW if overflow else FINE)
    assert optimizer.steps == overflows.count(False)
    skipped = overflows.count(True)
    assert scale.metrics == {"loss_scale": FIRST / 2**skipped, "skipped_steps": skipped}


@pytest.mark.parametrize("norm", [torch.tensor(torch.nan), OVERFLOW])
def test_it_grows_after_many_good_steps_in_a_row_through_a_restart(norm: torch.Tensor) -> None:
    scale, optimizer = LossScale(is_used=True), Counting()
    for _ in range(5):
        scale.step(optimizer, FINE)
    scale.step(optimizer, norm)
    for _ in range(INTERVAL - 1):
        scale.step(optimizer, FINE)
    again = LossScale(is_used=True)
    again.load_state_dict(json.loads(json.dumps(scale.state_dict())))
    assert again.metrics == scale.metrics == {"loss_scale": FIRST / 2, "skipped_steps": 1}
    again.step(optimizer, FINE)
    assert again.metrics == {"loss_scale": FIRST, "skipped_steps": 1}


def test_what_no_scale_mends_ends_the_run() -> None:
    scale, optimizer = LossScale(is_used=True), Counting()
    scale.value = LEAST
    with pytest.raises(TrainingError, match="however small"):
        scale.step(optimizer, OVERFLOW)
    assert optimizer.steps == 0


def test_unused_it_changes_nothing() -> None:
    scale, optimizer = LossScale(is_used=False), Counting()
    for norm in (FINE, OVERFLOW):
        scale.step(optimizer, norm)
    assert (optimizer.steps, scale.value, scale.metrics, scale.tracked) == (2, 1.0, {}, {})
