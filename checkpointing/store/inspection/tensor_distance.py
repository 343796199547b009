"""The distance of two pieces of a tensor, computed from their raw elements; sums over many
pieces."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_INTEGERS = {
    f"{sign}int{8 * size}": f"{kind}{size}"
    for sign, kind in (("", "i"), ("u", "u"))
    for size in (1, 2, 4, 8)
}
_FLOATS = {"float16": "f2", "float32": "f4", "float64": "f8"}
_COMPLEX = {"complex32": "f2", "complex64": "f4", "complex128": "f8"}


def is_number(dtype: str) -> bool:
    """Return whether differences of the dtype have a meaning here: not those of bool, float8 and
    float4."""
    return dtype in _INTEGERS or dtype in _FLOATS or dtype in _COMPLEX or dtype == "bfloat16"


@dataclass
class TensorDistance:
    """The distance of tensors A and B of one dtype, as far as they have been compared."""

    dtype: str
    elements: int = 0
    changed: int = 0  # elements whose bits differ: NaN equals the same NaN, and 0.0 is not -0.0
    # changed elements where A or B is NaN or infinite, which are left out of all other numbers
    not_finite: int = 0
    max_abs: float | int = 0  # largest |B - A|, exact for integers
    _squares: float = 0.0  # sum of the squares of B - A
    _norm: float = 0.0  # sum of the squares of A

    @property
    def relative_l2(self) -> float | None:
        """|B - A| / |A| over all finite elements; None if A is zero."""
        return math.sqrt(self._squares / self._norm) if self._norm > 0 else None

    def add(self, a: Array, b: Array) -> bool:
        """Compare raw elements as `Checkpoint.read` returns them; return whether any differs."""
        a, b = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
        differs = _differs(a, b)
        changed = int(np.count_nonzero(differs))
        self.elements += a.size
        self.changed += changed
        if is_number(self.dtype):
            self._add_norm(a)
            if changed:
                self._add_difference(a[differs], b[differs])
        return changed > 0

    def add_equal(self, a: Array | None, elements: int) -> None:
        """Count elements that are known to be equal; `a` is needed only for dtypes with numbers."""
        self.elements += elements
        if a is not None and is_number(self.dtype):
            self._add_norm(np.ascontiguousarray(a).reshape(-1))

    def _add_norm(self, a: Array) -> None:
        wide = _widened(self.dtype, a)
        squares = _sum_of_squares(wide)
        if not math.isfinite(squares):
            squares = _sum_of_squares(wide[np.isfinite(wide)])
        self._norm += squares

    def _add_difference(self, a: Array, b: Array) -> None:
        if self.dtype in _INTEGERS:
            kind = _INTEGERS[self.dtype]
            apart = _distance_of_integers(a.view(kind), b.view(kind))
            self.max_abs = max(self.max_abs, int(apart.max()))
            self._squares += _sum_of_squares(apart.astype(np.float64))
            return
        wide_a, wide_b = _widened(self.dtype, a), _widened(self.dtype, b)
        is_finite = np.isfinite(wide_a) & np.isfinite(wide_b)
        self.not_finite += int(np.count_nonzero(~is_finite))
        with np.errstate(over="ignore"):  # of float64: the difference is infinite then
            apart = np.abs(wide_b[is_finite] - wide_a[is_finite])
        if apart.size:
            self.max_abs = max(self.max_abs, float(apart.max()))
            self._squares += _sum_of_squares(apart)


def _differs(a: Array, b: Array) -> NDArray[np.bool_]:
    if a.dtype.kind != "c":
        found: NDArray[np.bool_] = a != b
        return found
    words = (a.view("u8") != b.view("u8")).reshape(-1, 2)
    either: NDArray[np.bool_] = words.any(axis=1)
    return either


def _widened(dtype: str, bits: Array) -> Array:
    """Return the numbers as float64 or complex128."""
    if dtype == "bfloat16":
        numbers = (bits.astype("u4") << 16).view("f4")
    else:
        numbers = bits.view((_INTEGERS | _FLOATS | _COMPLEX)[dtype])
    with np.errstate(invalid="ignore"):  # some NaNs raise it
        wide: Array = numbers.astype(np.float64)
    return wide.view(np.complex128) if dtype in _COMPLEX else wide


def _distance_of_integers(a: Array, b: Array) -> Array:
    """Return |a - b| without overflow: the wrapped difference is right as an unsigned number."""
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    in_a, in_b = a.view(unsigned), b.view(unsigned)
    apart: Array = np.where(a > b, in_a - in_b, in_b - in_a)
    return apart


def _sum_of_squares(values: Array) -> float:
    """Return the sum of squares of float64 or complex128. vdot is not used: its threads cost more
    than they gain here."""
    with np.errstate(over="ignore"):
        return float(np.square(values.view(np.float64)).sum())
