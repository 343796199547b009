"""How gradients become new parameters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Count, Decay, Fraction, Natural, Positive


@dataclass(frozen=True, config=GROUP)
class OptimSpec:
    """The optimizer and its learning rate (`conf/optim/`)."""

    kind: Literal["adamw", "muon", "sgd"]
    """adamw: all parameters (Loshchilov & Hutter 2019); muon: the matrices inside of blocks by
    orthogonalised momentum (Jordan et al. 2024), scaled so that one learning rate fits them and
    the others, which stay with AdamW (Liu et al. 2025); sgd: all by Nesterov's momentum (Goyal et
    al. 2017)."""
    lr: Positive
    """Peak learning rate."""
    schedule: Literal["cosine", "linear", "wsd", "constant"]
    """Course of the learning rate after the warm-up, down to `min_lr_ratio` at the last step.
    cosine, linear: all the way; wsd: only over `decay_share` (Hu et al. 2024); constant: never."""
    min_lr_ratio: Fraction | None
    """Learning rate at the last step, as a share of `lr`; null where it is constant."""
    warmup_steps: Natural
    """Steps of linear warm-up."""
    decay_share: Annotated[float, Field(gt=0, le=1)] | None
    """Share of all steps, the last ones, in which wsd decays, on a line; null for the others."""
    base_batch: Count | None
    """`train.global_batch` for which `lr` is right, where it shall follow the batch; null: `lr` is
    right for any."""
    scale: Literal["linear", "sqrt"] | None
    """How it follows: in proportion to the batch (Goyal et al. 2017, for SGD), or to its root
    (Malladi et al. 2022, for Adam); null without `base_batch`."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Weight decay of matrices, decoupled from the gradient but for sgd; vectors (norms, biases)
    get none."""
    momentum: Decay | None
    """Decay of momentum, of muon and sgd; null for adamw."""
    beta1: Decay | None
    """Decay of AdamW's first moment; null for sgd, as the next two."""
    beta2: Decay | None
    """Decay of AdamW's second moment."""
    eps: Positive | None
    """AdamW's epsilon."""
    grad_clip: Positive | None
    """Largest global gradient norm; null: any."""
    ema_decay: Decay | None
    """Decay of an exponential moving average of the parameters, in fp32, which is saved as `ema`
    beside `model`; null: none."""
