"""What this rank has of a tensor that may be spread over ranks."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """Its own part, which shares memory with it; all of what is not spread."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
