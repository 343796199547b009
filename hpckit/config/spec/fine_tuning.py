"""The parameters with which a run begins if they are not random, and those that it trains."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from hpckit.config.spec.earlier_attributes import EarlierAttributes
from hpckit.config.spec.field_types import GROUP, Count, Natural, Positive, Text


@dataclass(frozen=True, config=GROUP)
class InitFromSpec:
    """Trained parameters that a new run begins with (`conf/init_from/`). A run that has a
    checkpoint of its own resumes from that checkpoint and does not read these again."""

    kind: Literal["huggingface", "checkpoint"]
    """huggingface: a folder with config.json and safetensors files; checkpoint: a checkpoint of
    another run."""
    path: Text
    """That folder; or a run directory; or a run in a store, STORE/runs/RUN, also at a URL."""
    step: Natural | None
    """Step of the checkpoint; null: the newest checkpoint at the time the run begins. It must be
    null for huggingface."""
    item: Literal["model", "ema"] | None
    """What to read from the checkpoint: the parameters, or their moving average. It must be null
    for huggingface."""


@dataclass(frozen=True, config=GROUP)
class LoraSpec(EarlierAttributes, group="lora"):
    """Low-rank adapters (`conf/lora/`): a linear layer W x becomes W x + alpha / rank B A x, and
    only A and B are trained (Hu et al. 2021)."""

    rank: Count
    """Number of rows of A and of columns of B."""
    alpha: Positive
    """Weight of what the adapters add, times the rank."""
    target_modules: tuple[Text, ...]
    """Layers of each block that have adapters, by their names or by prefixes of them: attention,
    mlp, attention.qkv."""
