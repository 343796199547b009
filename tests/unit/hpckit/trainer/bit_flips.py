"""Flips a bit of a product, as a faulty device does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

BIT = 1 << 19
"""Of an fp32 number: it changes the mantissa by a sixteenth."""


def flip_products(model: nn.Module, calls: Sequence[int] = ()) -> None:
    """Have the last element that the first linear or convolutional layer of `model` returns be
    wrong from now on.

    Args:
        calls: numbers of the forward passes, from 0, in which it does; none: in all.
    """
    layer = next(one for one in model.modules() if isinstance(one, nn.Linear | nn.Conv2d))
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    def flip(_: nn.Module, given: object, product: Tensor) -> Tensor:
        if calls and passes - 1 not in calls:
            return product
        wrong = product.detach().float().clone(memory_format=torch.contiguous_format)
        wrong.view(torch.int32).view(-1)[-1] ^= BIT
        return product + (wrong - product.detach().float()).to(product.dtype)

    model.register_forward_pre_hook(count)
    layer.register_forward_hook(flip)
