"""AdamW, and linear warm-up followed by cosine decay."""

from __future__ import annotations

import math

from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from hpckit.run.spec import OptimSpec


def build_optimizer(model: nn.Module, spec: OptimSpec) -> AdamW:
    """AdamW over the parameters of `model`; weight decay on matrices alone.

    Decaying gains and biases does harm (Loshchilov & Hutter 2019 leave it open; GPT-2 and later
    exclude what has fewer than two dimensions).
    """
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": spec.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps)


def build_scheduler(optimizer: AdamW, spec: OptimSpec, steps: int) -> LambdaLR:
    """The learning rate of a run of `steps` steps."""
    return LambdaLR(optimizer, lambda step: lr_factor(step, spec, steps))


def set_lr(optimizer: AdamW, scheduler: LambdaLR, scale: float) -> float:
    """Have the step to come use the scheduler's learning rate times `scale`; that of the first
    group. The scale is no part of any state, so what is saved on one world is right on another."""
    for group, lr in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
        group["lr"] = lr * scale
    return float(optimizer.param_groups[0]["lr"])


def lr_factor(step: int, spec: OptimSpec, steps: int) -> float:
    """Learning rate of step `step` (from 0) as a share of the peak.

    Rises linearly over `warmup_steps`, then falls along half a cosine to `min_lr_ratio` at the
    last step.
    """
    if step < spec.warmup_steps:
        return (step + 1) / spec.warmup_steps
    done = (step - spec.warmup_steps) / max(1, steps - 1 - spec.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    return spec.min_lr_ratio + (1 - spec.min_lr_ratio) * cosine
