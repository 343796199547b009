"""What is not finite, and when a step counts as the same as one before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hpckit.events.event_log import Event, EventLog
from hpckit.events.schema import event_of
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.precision.finite_check import FiniteCheck, NotFiniteError, not_finite, was_seen
from tests.unit.hpckit.specs_and_processes import make_spec


def told(step: int) -> Event:
    return event_of(0.0, "not_finite", {"step": step})


STARTED = event_of(0.0, "run_started", {})


@pytest.mark.parametrize(
    ("events", "is_seen"),
    [
        ([], False),
        ([STARTED, told(40)], True),
        ([STARTED, told(45)], True),
        ([STARTED, told(31)], True),
        ([STARTED, told(30)], False),
        ([STARTED, told(50)], False),
        ([STARTED, told(40), STARTED], False),
    ],
)
def test_the_same_step_since_a_person_has_started_the_run(
    events: list[Event], is_seen: bool
) -> None:
    assert was_seen(events, step=40, every=10) is is_seen


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Model(nn.Module):
    """With a layer that is not trained, and a parameter of which this rank has nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen = nn.Linear(3, 2), nn.Linear(2, 1).requires_grad_(False)
        self.elsewhere = nn.Parameter(torch.empty(0))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_parameters_that_are_no_numbers_are_named(value: float) -> None:
    it = Model()
    assert not_finite(it) == []
    with torch.no_grad():
        it.frozen.weight[0, 0] = value  # nothing trains it
        assert not_finite(it) == []
        it.first.bias[1] = value
    assert not_finite(it) == ["first.bias"]
    assert not_finite(torch.optim.SGD(it.parameters())) == []


def test_they_are_computed_again_once(tmp_path: Path, alone: None) -> None:
    with EventLog(tmp_path / "events.jsonl") as events:
        check = FiniteCheck(make_spec(), tmp_path / "events.jsonl", events)
        it = Model()
        check.require_parameters(7, {"model": it, "step": 7})
        with torch.no_grad():
            it.first.weight.fill_(float("nan"))
        with pytest.raises(NotFiniteError, match="step 7: parameters are not finite after it"):
            check.require_parameters(7, {"model": it, "step": 7})
        with pytest.raises(TrainingError, match="as when it was computed before"):
            check.require_parameters(7, {"model": it, "step": 7})
        off = FiniteCheck(make_spec({"train.require_finite": False}), tmp_path / "none", events)
        off.require_parameters(7, {"model": it})


def test_fp16_lets_a_loss_pass_and_no_parameter(tmp_path: Path, alone: None) -> None:
    with EventLog(tmp_path / "events.jsonl") as events:
        check = FiniteCheck(
            make_spec({"precision.compute": "fp16"}), tmp_path / "events.jsonl", events
        )
        check.require(7, {"loss": float("nan"), "grad_norm": float("inf")})  # a skipped step's
        it = Model()
        check.require_parameters(7, {"model": it})
        assert check.problem_of({"model": it}) is None
        with torch.no_grad():
            it.first.weight.fill_(float("inf"))
        assert check.problem_of({"model": it}) == "not finite: first.weight"
        with pytest.raises(NotFiniteError, match="step 7: parameters are not finite after it"):
            check.require_parameters(7, {"model": it})
