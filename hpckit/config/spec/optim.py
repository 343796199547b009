"""The optimizer and its learning rate schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.earlier_attributes import EarlierAttributes
from hpckit.config.spec.field_types import GROUP, Count, Decay, Fraction, Natural, Positive


@dataclass(frozen=True, config=GROUP)
class OptimSpec(EarlierAttributes, group="optim"):
    """The optimizer and its learning rate (`conf/optim/`)."""

    kind: Literal["adamw", "muon", "sgd"]
    """adamw: AdamW for all parameters (Loshchilov & Hutter 2019); muon: Muon for the matrices of
    blocks (Jordan et al. 2024) and AdamW for the others, scaled so that one learning rate fits both
    (Liu et al. 2025); sgd: SGD with Nesterov momentum for all (Goyal et al. 2017)."""
    lr: Positive
    """Peak learning rate."""
    schedule: Literal["cosine", "linear", "wsd", "constant"]
    """Decay of the learning rate after the warm-up, down to `min_lr_ratio` at the last step.
    cosine, linear: over all steps; wsd: warmup-stable-decay, only over the last `decay_ratio` (Hu
    et al. 2024); constant: no decay."""
    min_lr_ratio: Fraction | None
    """Learning rate at the last step divided by `lr`; it must be null for constant."""
    schedule_unit: Literal["steps", "samples", "tokens"]
    """What the warm-up and the decay advance by. steps: optimizer steps; samples, tokens: those
    that the run has seen, in units of a step of `train.global_batch` samples, so that the smaller
    steps of `train.batch_ramp` and `train.sequence_ramp` count for less."""
    warmup_steps: Natural
    """Number of steps of linear warm-up."""
    decay_ratio: Annotated[float, Field(gt=0, le=1)] | None
    """Fraction of all steps, at the end, over which wsd decays linearly; null for other
    schedules."""
    base_batch: Count | None
    """`train.global_batch` for which `lr` was tuned, to scale `lr` with the batch; null: `lr` is
    not scaled."""
    scale: Literal["linear", "sqrt"] | None
    """How `lr` is scaled with the batch: linearly (Goyal et al. 2017, for SGD) or with its square
    root (Malladi et al. 2022, for Adam); it must be null without `base_batch`."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Weight decay of matrices, decoupled from the gradient except for sgd; vectors (norms, biases)
    have none."""
    momentum: Decay | None
    """Momentum of muon and sgd; null for adamw."""
    beta1: Decay | None
    """Decay of AdamW's first moment; null for sgd."""
    beta2: Decay | None
    """Decay of AdamW's second moment; null for sgd."""
    eps: Positive | None
    """Epsilon of AdamW; null for sgd."""
    grad_clip: Positive | None
    """Largest global gradient norm, by clipping; null: no clipping."""
    ema_decay: Decay | None
    """Decay of an exponential moving average (EMA) of the parameters in fp32, which is saved as
    `ema` beside `model`; null: none."""
