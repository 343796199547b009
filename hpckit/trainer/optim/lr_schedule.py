"""The learning rate as a function of the step, so that no state has to be saved or restored."""

from __future__ import annotations

from torch.optim import Optimizer

from hpckit.config.learning_rate import lr_factor as lr_factor
from hpckit.config.spec import OptimSpec


def set_lr(optimizer: Optimizer, spec: OptimSpec, step: float, steps: float, scale: float) -> float:
    """Set the learning rate for step `step` (from 0) of `steps`, times `scale`, and return it. Both
    may be those of a `SchedulePoint`."""
    lr = spec.lr * lr_factor(step, spec, steps) * scale
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr
