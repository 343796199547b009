"""Activation recompute: a block's activations are computed again in the backward pass instead of
kept.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

_aten = torch.ops.aten
_MATRIX_PRODUCTS = frozenset(
    (_aten.mm.default, _aten.addmm.default, _aten._scaled_mm.default, _aten.linear.default)
)
_ATTENTION = frozenset(
    (
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    )
)


def recompute(blocks: Iterable[nn.Module], how: Literal["none", "selective", "full"]) -> None:
    """Have `blocks` recompute their activations from now on; the names of their parameters stay.

    Selective: the outputs of attention and of every second matrix product are kept; not of plain
    attention (`memory.attention=math`), whose parts are larger than its output.
    """
    if how == "none":
        return
    options: dict[str, Any] = {"context_fn": _selection} if how == "selective" else {}
    for block in blocks:
        again = partial(checkpoint, block.forward, use_reentrant=False, **options)
        block.forward = again


def _selection() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of one forward pass and of its repetition."""
    products: Counter[bool] = Counter()

    def policy(
        context: SelectiveCheckpointContext, operation: Any, *_: Any, **__: Any
    ) -> CheckpointPolicy:
        is_kept = operation in _ATTENTION
        if operation in _MATRIX_PRODUCTS:
            products[context.is_recompute] += 1
            is_kept = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    forward, again = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
    return forward, again
