"""Batch normalisation with running moments that are the same on all ranks, for any number of ranks.

Ioffe & Szegedy, "Batch Normalization" (2015).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from hpckit.torch_internals import foreach_add_, foreach_zero_

EPSILON = 1e-5
MOMENTUM = 0.1
"""Weight of a step's moments in the running moments (Goyal et al. 2017, section 5.1)."""


class BatchNorm(nn.Module):
    """Batch normalisation in fp32 for inputs of any dtype. `BatchNormMoments` updates its running
    moments."""

    running_mean: Tensor
    running_var: Tensor
    batch_mean: Tensor
    """(channels,): the mean of the newest micro-batch."""
    batch_var: Tensor
    """(channels,): the variance of the newest micro-batch."""

    def __init__(self, channels: int, *, sync: bool) -> None:
        """`sync`: whether the moments are those of the micro-batches of all ranks together, which
        have to be of equal size."""
        super().__init__()
        self.sync = sync
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        for name in ("running_mean", "running_var", "batch_mean", "batch_var"):
            # not empty: torch multiplies the moments before by 0, which leaves NaN and infinity
            zeros = torch.zeros(channels, dtype=torch.float32)
            self.register_buffer(name, zeros, persistent=name.startswith("running"))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`, (batch, channels, height, width), normalised."""
        scale = self.weight.float(), self.bias.float()
        if not self.training:
            running = self.running_mean, self.running_var
            return functional.batch_norm(x, *running, *scale, eps=EPSILON)
        if self.sync and dist.is_initialized():
            return self._normalise_over_ranks(x, *scale)
        batch = self.batch_mean, self.batch_var
        return functional.batch_norm(x, *batch, *scale, training=True, momentum=1.0, eps=EPSILON)

    def _normalise_over_ranks(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        values = x.float()
        var, mean = torch.var_mean(values, dim=(0, 2, 3), correction=0)
        # relative to a value near by that all ranks know, so that the difference below is exact
        distance = mean - self.running_mean
        shift, square = _mean_over_ranks(torch.stack((distance, var + distance.square())))
        mean, var = shift + self.running_mean, square - shift.square()
        count = dist.get_world_size() * values.numel() // values.shape[1]
        with torch.no_grad():
            self.batch_mean.copy_(mean)
            self.batch_var.copy_(var * (count / max(1, count - 1)))
        gain = weight * (var + EPSILON).rsqrt()
        out = torch.addcmul((bias - mean * gain)[:, None, None], values, gain[:, None, None])
        return out.to(x.dtype)


class BatchNormMoments:
    """The moments of all micro-batches of a step on all ranks, by which the running moments are
    updated once a step. The result does not depend on which rank computed which micro-batch."""

    def __init__(self, model: nn.Module) -> None:
        """Collect the moments after each forward pass of `model` in training mode."""
        norms = [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
        self._batch = [moment for norm in norms for moment in (norm.batch_mean, norm.batch_var)]
        self._running = [m for norm in norms for m in (norm.running_mean, norm.running_var)]
        self._sums = [torch.zeros_like(moment) for moment in self._batch]
        self._micro_batches = 0
        self.forget()  # a model that was made on the meta device has whatever was in its memory
        if norms:
            model.register_forward_hook(self._collect)

    def _collect(self, model: nn.Module, *_: object) -> None:
        if model.training:
            foreach_add_(self._sums, self._batch)
            self._micro_batches += 1

    def forget(self) -> None:
        """Forget the micro-batches since the last update."""
        if self._running:
            foreach_zero_([*self._sums, *self._batch])
        self._micro_batches = 0

    @torch.no_grad()
    def update(self) -> None:
        """Update the running moments at the end of a step. Collective if the model has batch
        normalisation."""
        if not self._running:
            return
        flat = torch.cat(self._sums)
        dist.all_reduce(flat)
        flat /= dist.get_world_size() * self._micro_batches
        found = torch.split(flat, [len(moment) for moment in self._running])
        for running, moment in zip(self._running, found, strict=True):
            # a step that an overflow in fp16 skips must not change the running moments
            running.lerp_(torch.where(moment.isfinite(), moment, running), MOMENTUM)
        self.forget()  # also the newest one, since infinity with a weight of 0 gives NaN


@contextmanager
def own_moments(model: nn.Module) -> Iterator[None]:
    """Have `model` compute with the moments of this rank's micro-batches alone in this block."""
    norms = [layer for layer in model.modules() if isinstance(layer, BatchNorm) and layer.sync]
    for norm in norms:
        norm.sync = False
    try:
        yield
    finally:
        for norm in norms:
            norm.sync = True


def _mean_over_ranks(x: Tensor) -> Tensor:
    out: Tensor = _Mean.apply(x)  # type: ignore[no-untyped-call]
    return out


class _Mean(torch.autograd.Function):
    """The mean over all ranks, in the backward pass too, since the loss of each rank depends on the
    values of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _mean_over_ranks(gradients[0].contiguous())
