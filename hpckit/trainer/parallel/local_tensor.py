"""Access to this rank's part of a tensor that may be a DTensor."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """Return the local tensor of a DTensor, which shares its memory, or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
