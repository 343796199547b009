"""Converts torch dtypes to names and back, and tensors to raw bytes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpointing.errors import FormatError

_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
_NUMPY = frozenset((torch.float32, torch.float64, torch.float16, torch.int64, torch.int32))
"""The most frequent dtypes of those that numpy has too."""
_PLACEHOLDER = re.compile(r"bits.*|u?int[1-7]")


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Returns "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """Returns torch.float32 for "float32", for the names that `checkpointing.format.element_types`
    knows.

    Raises:
        FormatError: this torch does not have the dtype.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise FormatError(
            f"torch {torch.__version__} has no dtype {name}: a newer torch can read these tensors "
            "(float4_e2m1fn_x2 is there since 2.8)"
        )
    return found


@cache
def is_placeholder(dtype: torch.dtype) -> bool:
    """Whether torch only names the dtype, without operations on it (int4, bits8). DCP cannot plan
    with such dtypes either; libraries that use them keep the bytes in a uint8 tensor."""
    return _PLACEHOLDER.fullmatch(dtype_name(dtype)) is not None


def as_bytes(tensor: Tensor) -> memoryview:
    """Returns the bytes of a contiguous CPU tensor, without a copy."""
    return tensor.detach().view(-1).view(torch.uint8).numpy().data


def byte_array(tensor: Tensor) -> NDArray[np.uint8]:
    """As `as_bytes`: uint8[bytes of the tensor]. Takes half as long for dtypes that numpy has."""
    held = tensor.detach() if tensor.requires_grad else tensor
    if held.dtype not in _NUMPY:
        held = held.view(-1).view(torch.uint8)
    found: NDArray[np.uint8] = held.numpy().reshape(-1).view(np.uint8)
    return found


def as_array(tensor: Tensor) -> NDArray[Any]:
    """As `bits_of`, but contiguous: it shares the memory of a tensor that is so."""
    return bits_of(tensor.detach().contiguous())


def bits_of(tensor: Tensor) -> NDArray[Any]:
    """Returns a CPU tensor as a numpy array of bits, see `ElementType.bits`, which shares its
    memory."""
    held = tensor.detach()
    bits = _BITS.get(held.element_size())
    found: NDArray[Any] = (held if bits is None else held.view(bits)).numpy()
    return found


def copy_bits(target: Tensor, source: Tensor) -> None:
    """Copy between tensors of one shape and dtype, bit for bit (NaN payloads, -0.0, odd bools)."""
    if _has_byte_view(target) and _has_byte_view(source):
        target, source = _byte_view(target), _byte_view(source)
    with torch.no_grad():
        target.copy_(source)


def _has_byte_view(tensor: Tensor) -> bool:
    lazy = tensor.is_conj() or tensor.is_neg()
    return not lazy and (tensor.ndim == 0 or tensor.stride(-1) == 1)


def _byte_view(tensor: Tensor) -> Tensor:
    return (tensor.detach().reshape(1) if tensor.ndim == 0 else tensor.detach()).view(torch.uint8)
