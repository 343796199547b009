"""Casts floating-point numbers between dtypes as torch does, from and to their bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

TARGETS = ("float32", "float16", "bfloat16")
_SOURCES = ("float64", *TARGETS)

Bits = NDArray[Any]


def dtype_after(stored: str, wanted: str | None) -> str:
    """Return the dtype of a tensor after the cast: `wanted`, or `stored` if it is None or the
    tensor does not hold floating-point numbers of 16 bits or more."""
    return wanted if wanted is not None and stored in _SOURCES else stored


def check_target(dtype: str | None) -> str | None:
    """Return `dtype`.

    Raises:
        ValueError: numbers cannot be cast to it here.
    """
    if dtype is not None and dtype not in TARGETS:
        raise ValueError(f"dtype {dtype!r}: weights can be cast to {', '.join(TARGETS)}")
    return dtype


def cast(bits: Bits, stored: str, wanted: str) -> Bits:
    """Return the bits of the numbers in another dtype, rounded to the nearest, ties to even.

    Args:
        bits: unsigned integers of the size of `stored`, of any shape.
        stored, wanted: torch's names of dtypes.
    """
    if stored == wanted:
        return bits
    numbers = _as_float32(bits, stored)
    if wanted == "float32":
        return numbers.view(np.uint32)
    if wanted == "float16":
        with np.errstate(over="ignore", invalid="ignore"):
            return numbers.astype(np.float16).view(np.uint16)
    return _bfloat16(numbers.view(np.uint32))


def _as_float32(bits: Bits, stored: str) -> NDArray[np.float32]:
    if stored == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if stored == "float32":
        return np.ascontiguousarray(bits).view(np.float32)
    kind: Any = np.float64 if stored == "float64" else np.float16
    with np.errstate(over="ignore", invalid="ignore"):
        numbers: NDArray[np.float32] = np.ascontiguousarray(bits).view(kind).astype(np.float32)
    return numbers


def _bfloat16(words: NDArray[np.uint32]) -> NDArray[np.uint16]:
    is_nan = (words & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    odd = (words >> np.uint32(16)) & np.uint32(1)
    with np.errstate(over="ignore"):
        rounded = ((words + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    return np.where(is_nan, np.uint16(0x7FC0), rounded)
