"""Training a few parameters beside many that stay as they are."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Count, Positive, Text


@dataclass(frozen=True, config=GROUP)
class LoraSpec:
    """Low-rank adapters (`conf/lora/`): a linear layer W x becomes W x + alpha / rank B A x, of
    which A and B alone are trained (Hu et al. 2021)."""

    rank: Count
    """Rows of A, columns of B."""
    alpha: Positive
    """Weight of what the adapters add, times the rank."""
    layers: tuple[Text, ...]
    """Which layers of each block have them, by their names or how these begin: attention, mlp,
    attention.qkv."""
