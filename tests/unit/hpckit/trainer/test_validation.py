"""When a run is validated, what becomes of it, and modules that are put back as they were."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import is_grad_enabled, nn

from hpckit.trainer.validation import ValidationSchedule, _mask_of, evaluating
from tests.unit.hpckit.specs_and_processes import make_spec


def validation(every: int | None, steps: int, best: str | None = None) -> ValidationSchedule:
    changes = {
        "train.steps": steps,
        "train.validate_every": every,
        "data.validation": None if every is None else "/held/out",
        "checkpoint.keep.best": best,
        "optim.warmup_steps": 0,
    }
    return ValidationSchedule(make_spec(changes))


@settings(deadline=None)
@given(every=st.integers(1, 30), steps=st.integers(1, 60))
def test_it_is_due_each_so_many_steps_and_after_the_last(every: int, steps: int) -> None:
    it, due = validation(every, steps), []
    for step in range(steps + 1):
        if it.is_due(step):
            it.record(step, {})
            due.append(step)
        assert not it.is_due(step), "once"
    assert due == sorted({*range(every, steps + 1, every), steps})


def test_without_an_interval_it_is_never_due() -> None:
    assert not any(validation(None, 9).is_due(step) for step in range(10))


def test_only_the_checkpoint_of_its_step_is_judged_by_it() -> None:
    it = validation(5, 20, best="val_loss")
    assert not it.has_best_metric(0)
    assert it.record(5, {"loss": 2.0}) == {"val_loss": 2.0}
    assert it.has_best_metric(5)
    assert it.metrics(5) == {"val_loss": 2.0}
    assert (it.has_best_metric(6), it.metrics(6)) == (False, {})
    assert not validation(5, 20, best="loss").has_best_metric(0)
    other = validation(5, 20, best="val_error")
    other.record(5, {"loss": 2.0})
    assert not other.has_best_metric(5)


def test_modules_are_in_eval_mode_and_come_back_as_they_were() -> None:
    frozen, dropout = nn.Linear(1, 1).eval(), nn.Dropout()
    model = nn.Sequential(frozen, dropout)
    with evaluating([model, "no module"]):
        assert (model.training, dropout.training, is_grad_enabled()) == (False, False, False)
    assert (model.training, dropout.training, frozen.training) == (True, True, False)
    assert is_grad_enabled()


def test_every_sample_of_a_batch_of_another_loader_counts() -> None:
    measured = {"loss": torch.ones(3), "mistake": torch.ones(())}
    assert _mask_of((1, 2, 3), measured).tolist() == [True] * 3
    assert _mask_of((1, 2, 3), {"mistake": torch.ones(())}).tolist() == []
