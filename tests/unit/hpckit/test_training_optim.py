"""The learning rate's course, and what is decayed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hpckit.run.spec import OptimSpec
from hpckit.training.optim import build_optimizer, build_scheduler, lr_factor

VALUES: dict[str, Any] = {
    "lr": 1e-3,
    "min_lr_ratio": 0.1,
    "warmup_steps": 10,
    "weight_decay": 0.2,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "grad_clip": 1.0,
}
SPEC = OptimSpec(**VALUES)


@given(warmup=st.integers(0, 50), after=st.integers(1, 200), low=st.floats(0, 1, allow_nan=False))
def test_it_rises_to_the_peak_then_only_falls_and_never_below_its_floor(
    warmup: int, after: int, low: float
) -> None:
    spec = OptimSpec(**{**VALUES, "warmup_steps": warmup, "min_lr_ratio": low})
    steps = warmup + after
    factors = [lr_factor(step, spec, steps) for step in range(steps + 5)]
    rise, fall = factors[:warmup], factors[warmup:]
    assert rise == pytest.approx([(step + 1) / warmup for step in range(warmup)])
    assert fall[0] == pytest.approx(1.0)
    assert all(a >= b for a, b in pairwise(fall))
    assert all(low - 1e-9 <= factor <= 1 + 1e-9 for factor in fall)
    assert factors[-1] == pytest.approx(low)


def test_half_way_down_it_is_half_way_between_peak_and_floor() -> None:
    assert lr_factor(10 + 45, SPEC, steps=101) == pytest.approx(0.55)


def test_the_last_step_has_the_floor() -> None:
    assert lr_factor(99, SPEC, steps=100) == pytest.approx(SPEC.min_lr_ratio)


def test_matrices_are_decayed_and_vectors_are_not() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Embedding(5, 2))
    frozen = nn.Linear(2, 2).requires_grad_(False)
    optimizer = build_optimizer(nn.ModuleList([model, frozen]), SPEC)
    decay = {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }
    assert decay == {id(p): 0.2 if p.dim() >= 2 else 0.0 for p in model.parameters()}


def test_the_scheduler_follows_the_curve() -> None:
    optimizer = build_optimizer(nn.Linear(2, 2), SPEC)
    scheduler = build_scheduler(optimizer, SPEC, steps=40)
    for step in range(40):
        assert scheduler.get_last_lr()[0] == pytest.approx(1e-3 * lr_factor(step, SPEC, 40))
        optimizer.step()
        scheduler.step()
