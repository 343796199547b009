"""The norm and the clipping of all gradients of a model, for any sharding."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hpckit.torch_internals import foreach_mul_, foreach_norm
from hpckit.trainer.parallel.local_tensor import local


def clip_gradients(
    parameters: Iterable[nn.Parameter],
    limit: float,
    *,
    stages: int,
    shared: Collection[Tensor],
    device: torch.device,
    scale: float = 1.0,
) -> Tensor:
    """Divide all gradients by `scale`, and then scale them down to a norm of `limit` if theirs is
    larger. Collective of all ranks.

    Args:
        stages: number of pipeline stages, each of which has parameters of its own.
        shared: parameters that two stages have in common.
        device: device on which tensors have to be for collectives.
        scale: the loss scale.

    Returns:
        The norm after the division and before the scaling down, the same on all ranks; not finite
        if any gradient is not.
    """
    gradients: dict[float, list[Tensor]] = {}  # by their weight in the sum over ranks
    ranks = dist.get_world_size() // stages
    for parameter in parameters:
        if parameter.grad is not None:
            copies = _copies(parameter.grad, ranks) * (2 if _is_among(parameter, shared) else 1)
            gradients.setdefault(1 / copies, []).append(local(parameter.grad))
    squares = [
        # in fp32, for gradients of bf16 too
        torch.stack(foreach_norm(some, 2, torch.float32)).square().sum() * weight
        for weight, some in gradients.items()
    ]
    total = torch.stack(squares).sum().to(device)
    if ranks * stages > 1:
        dist.all_reduce(total)
    norm = total.sqrt() / scale
    factor = (limit / (norm + 1e-6)).clamp(max=1.0) / scale
    for some in gradients.values():
        foreach_mul_(some, factor.to(some[0].device))
    return norm


def _copies(gradient: Tensor, ranks: int) -> int:
    """Return how many of the `ranks` ranks hold the same elements of the gradient."""
    if not isinstance(gradient, DTensor):
        return ranks
    placed = zip(gradient.placements, gradient.device_mesh.shape, strict=True)
    return ranks // prod(size for placement, size in placed if not placement.is_replicate())


def _is_among(parameter: Tensor, some: Iterable[Tensor]) -> bool:
    return any(parameter is one for one in some)
