"""Views of weights as torch's tensors."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpointing.follower.weight_layout import WeightLayout
from checkpointing.format.element_types import element
from checkpointing.format.torch_dtypes import torch_dtype


def as_tensor(bits: NDArray[Any], dtype: str) -> Tensor:
    """Return a tensor that shares the memory of an array.

    Args:
        bits: writable raw elements of the dtype's size.
        dtype: torch's name of the dtype.

    Raises:
        FormatError: this torch does not have the dtype.
    """
    kind = torch_dtype(dtype)
    if not bits.size:
        return torch.empty(bits.shape, dtype=kind)
    return torch.frombuffer(bits.reshape(-1), dtype=kind).reshape(bits.shape)


def tensors_of(fd: int, layout: WeightLayout) -> dict[str, Tensor]:
    """Return views of all tensors in an image, by their names in it. Writing to them does not
    change the image."""
    memory = mmap.mmap(fd, layout.size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    found = {}
    for name, spec in layout.tensors.items():
        count, kind = math.prod(spec.shape), element(spec.dtype).bits
        bits = (
            np.frombuffer(memory, kind, count, layout.starts[name]) if count else np.empty(0, kind)
        )
        found[layout.names[name]] = as_tensor(bits.reshape(spec.shape), spec.dtype)
    return found
