"""The learning rate of a step as a share of its peak, and the scale of that peak on other ranks, by
pure functions."""

from __future__ import annotations

import math
from typing import Literal

from hpckit.config.batch_size import global_batch
from hpckit.config.rules.optim import decay_steps
from hpckit.config.spec import OptimSpec, RunSpec


def lr_factor(step: float, spec: OptimSpec, steps: float) -> float:
    """Return the learning rate of step `step` (from 0) as a share of the peak. Both numbers may be
    those of a `SchedulePoint`.

    Rises linearly over `warmup_steps`, then falls as `schedule` says to `min_lr_ratio` at the last
    step.
    """
    if step < spec.warmup_steps:
        return min(1.0, (step + 1) / spec.warmup_steps)
    if spec.min_lr_ratio is None:
        return 1.0
    return spec.min_lr_ratio + (1 - spec.min_lr_ratio) * _height(step, spec, steps)


def _height(step: float, spec: OptimSpec, steps: float) -> float:
    """Return the height between the floor, 0, and the peak, 1, after the warm-up."""
    if spec.schedule == "wsd":
        # The first step of the decay is already below the peak: the stable phase ends before it.
        return min(1.0, max(0, steps - 1 - step) / decay_steps(spec, steps))
    done = min(1.0, (step - spec.warmup_steps) / max(1, steps - 1 - spec.warmup_steps))
    return 1 - done if spec.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def lr_scale(spec: RunSpec, world: int) -> float:
    """Returns the factor of the learning rate on `world` ranks: it is scaled from
    `optim.base_batch` to the full global batch, and from there by `elastic.scale_lr` to the batch
    of these ranks."""
    whole, optim = spec.train.global_batch, spec.optim
    elastic = _scaled(global_batch(spec, world) / whole, spec.elastic.scale_lr)
    return elastic * _scaled(whole / (optim.base_batch or whole), optim.scale)


def _scaled(ratio: float, rule: Literal["linear", "sqrt"] | None) -> float:
    """Returns the ratio of learning rates for a ratio of batch sizes."""
    return math.sqrt(ratio) if rule == "sqrt" else ratio
