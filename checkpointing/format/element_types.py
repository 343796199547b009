"""The element types that a tensor may have, by torch's names. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checkpointing.errors import FormatError

_BITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


@dataclass(frozen=True)
class ElementType:
    """One element type."""

    name: str  # torch's name: "float32", "bfloat16", ...
    itemsize: int  # bytes per element
    word: int  # bytes per scalar: half an element for complex numbers
    is_float: bool  # words are sign, exponent and mantissa, in this order

    @property
    def bits(self) -> np.dtype[np.generic]:
        """A numpy dtype of this size, with which arrays are copied bit by bit without
        interpretation."""
        return np.dtype(_BITS[self.itemsize])


def _elements() -> dict[str, ElementType]:
    floats = {
        1: (
            "float8_e4m3fn",
            "float8_e4m3fnuz",
            "float8_e5m2",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
            "float4_e2m1fn_x2",
        ),
        2: ("float16", "bfloat16"),
        4: ("float32",),
        8: ("float64",),
    }
    integers = {1: ("int8", "uint8", "bool"), 2: ("int16", "uint16")}
    integers |= {4: ("int32", "uint32"), 8: ("int64", "uint64")}
    found = [
        ElementType(name, size, size, True) for size, names in floats.items() for name in names
    ]
    found += [ElementType(name, n, n, False) for n, names in integers.items() for name in names]
    found += [ElementType(f"complex{16 * n}", 2 * n, n, True) for n in (2, 4, 8)]
    return {element.name: element for element in found}


ELEMENTS = _elements()


def element(name: str) -> ElementType:
    """Returns the element type of this name.

    Raises:
        FormatError: it is unknown to this version.
    """
    found = ELEMENTS.get(name)
    if found is None:
        raise FormatError(
            f"dtype {name!r} is unknown to this version, which supports "
            f"{', '.join(sorted(ELEMENTS))}"
        )
    return found
