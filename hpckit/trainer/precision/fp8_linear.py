"""Linear layers whose matrix products are computed in fp8, where each tensor is scaled by its
largest value.

Micikevicius et al., "FP8 Formats for Deep Learning" (2022): e4m3 for activations and weights, e5m2
for gradients, which need a larger range.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from hpckit.torch_internals import scaled_mm

_FORWARD, _BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
_TINY = 1e-12  # for a tensor of zeros


def use_fp8(blocks: Iterable[nn.Module]) -> None:
    """Have the linear layers of `blocks` compute in fp8, in place; the names of their parameters do
    not change."""
    for block in blocks:
        for layer in block.modules():
            if isinstance(layer, nn.Linear):
                layer.__class__ = _Fp8Linear  # not a new `forward`, so that compiled code is shared


def lack_of_fp8(device: torch.device) -> str | None:
    """Return why a run cannot use fp8 here; None if it can."""
    if device.type != "cuda":
        return "fp8 is computed only on GPUs"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 9):
        name = torch.cuda.get_device_name(device)
        return f"{name} has capability {major}.{minor}, and fp8 comes with 8.9 (Ada, Hopper)"
    return None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a linear layer in fp8.

    Args:
        x: (..., features), of the dtype of the other arguments. The product of its sizes except the
            last one is a multiple of 16, as are all sizes of the other arguments.
        weight: (outputs, features).
        bias: (outputs,), or None.

    Returns:
        (..., outputs).
    """
    out: Tensor = _Fp8LinearFunction.apply(x.flatten(0, -2), weight, bias)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], -1)


class _Fp8Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class _Fp8LinearFunction(torch.autograd.Function):
    """The linear function and its gradients. For the backward pass it keeps the activations in fp8,
    and the weight as it is, since FSDP gathers that again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        small, scale = _scaled(x, _FORWARD)
        ctx.save_for_backward(small, scale, weight)
        out = _product(small, scale, *_scaled(weight, _FORWARD), x.dtype, is_fast=True)
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        (gradient,) = gradients
        x, x_scale, weight = ctx.saved_tensors
        small, scale = _scaled(gradient, _BACKWARD)
        weight_small, weight_scale = _scaled(weight, _FORWARD)
        of_x = _product(small, scale, _transposed(weight_small), weight_scale, gradient.dtype)
        needs_weight, needs_bias = ctx.needs_input_grad[1:]
        of_weight = (
            _product(_transposed(small), scale, _transposed(x), x_scale, weight.dtype)
            if needs_weight
            else None
        )
        return of_x, of_weight, gradient.sum(0) if needs_bias else None


def _scaled(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return `x` in the fp8 format `kind`, and the factor that restores it."""
    largest = x.detach().abs().amax().float().clamp(min=_TINY)
    scale = largest / torch.finfo(kind).max
    return (x.detach().float() / scale).to(kind).contiguous(), scale


def _product(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    dtype: torch.dtype,
    is_fast: bool = False,
) -> Tensor:
    """Return the product (m, n) of `a` (m, k) and the transpose of `b` (n, k), whose rows are
    contiguous, as the hardware requires.

    Args:
        is_fast: whether sums have fewer bits, which is good enough for the forward pass.
    """
    return scaled_mm(
        a, b.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=dtype, use_fast_accum=is_fast
    )


def _transposed(x: Tensor) -> Tensor:
    return x.t().contiguous()
