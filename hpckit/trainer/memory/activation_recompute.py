"""Activation checkpointing: the backward pass recomputes the activations of a block instead of
keeping them.

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

from hpckit.torch_internals import ATTENTION_OPERATORS, SCALED_PRODUCT

_aten = torch.ops.aten
_MATRIX_PRODUCTS = frozenset(
    (_aten.mm.default, _aten.addmm.default, SCALED_PRODUCT, _aten.linear.default)
)


def recompute(blocks: Iterable[nn.Module], how: Literal["none", "selective", "full"]) -> None:
    """Apply activation checkpointing to `blocks`, in place; the names of their parameters do not
    change.

    With "selective", the outputs of attention and of every second matrix product are kept, but not
    those of plain attention (`memory.attention=math`), whose parts are larger than its output.
    """
    if how == "none":
        return
    options: dict[str, Any] = {"context_fn": _selective_contexts} if how == "selective" else {}
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)


def _selective_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of a forward pass and of its recomputation."""
    products: Counter[bool] = Counter()

    def policy(
        context: SelectiveCheckpointContext, operation: Any, *_: Any, **__: Any
    ) -> CheckpointPolicy:
        is_kept = operation in ATTENTION_OPERATORS
        if operation in _MATRIX_PRODUCTS:
            products[context.is_recompute] += 1
            is_kept = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    forward, recomputation = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
    return forward, recomputation
