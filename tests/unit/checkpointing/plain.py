"""Plain values of every kind, by chance, and whether two are the same to the last bit."""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from collections import Counter, OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from checkpointing import register
from checkpointing.format.torch_dtypes import as_bytes


@register
class Point(NamedTuple):
    x: Any
    y: Any = 0


@register
@dataclasses.dataclass
class Progress:
    epoch: int
    best: Any = None
    seen: list[Any] = dataclasses.field(default_factory=list)


@register
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    inner: Any


class Undeclared(NamedTuple):
    x: Any


DTYPES = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
DTYPES += ["S3", "U2", "M8[ns]", "m8[25s]"]


def same(one: Any, other: Any, *, ordered: bool = True) -> bool:
    """Of the same types and the same bits, and dicts in the same order; of a float that is not a
    number, only that it is so."""
    alike = functools.partial(same, ordered=ordered)
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and bits(one) == bits(other)
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and (
            one.tobytes() == other.tobytes()
        )
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or pack(one) == pack(other)
    if isinstance(one, complex):
        return alike((one.real, one.imag), (other.real, other.imag))
    if isinstance(one, set | frozenset):
        return alike(sorted(one, key=repr), sorted(other, key=repr))
    if isinstance(one, dict):
        pairs = [sorted(d.items(), key=lambda p: ordered or repr(p[0])) for d in (one, other)]
        return alike(*pairs)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return all(alike(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other)


def bits(tensor: Tensor) -> bytes:
    held = tensor.detach().contiguous()
    return bytes(as_bytes(held)) if held.numel() else b""


def pack(number: float) -> bytes:
    return struct.pack("<d", number)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    if draw(st.booleans()):
        dtype = dtype.newbyteorder(">")
    shape = draw(st.sampled_from([(), (0,), (3,), (2, 2), (0, 4)]))
    raw = draw(st.binary(min_size=4 * dtype.itemsize, max_size=4 * dtype.itemsize))
    if dtype.kind == "U":  # not every number is a character
        raw = ("".join(chr(65 + byte % 26) for byte in raw))[: 4 * dtype.itemsize // 4].encode(
            "utf-32-be" if dtype.str[0] == ">" else "utf-32-le"
        )
    elif dtype.kind == "b":
        raw = bytes(byte % 2 for byte in raw)
    array = np.frombuffer(raw, dtype)[: math.prod(shape)].reshape(shape).copy()
    return array.T if draw(st.booleans()) else array


def scalars_of_numpy() -> st.SearchStrategy[Any]:
    numbers = st.sampled_from([np.float64, np.float32, np.float16, np.complex64])
    whole = st.sampled_from([np.int8, np.uint64, np.int64, np.bool_])
    dates = [np.datetime64("NaT", "s"), np.datetime64("2026-11-25"), np.timedelta64(3, "h")]
    return (
        st.tuples(numbers, st.floats(width=16)).map(lambda pair: pair[0](pair[1]))
        | st.tuples(whole, st.integers(0, 1)).map(lambda pair: pair[0](pair[1]))
        | st.text(max_size=3).map(np.str_)
        | st.binary(max_size=3).map(np.bytes_)
        | st.sampled_from(dates)
    )


def of_torch() -> st.SearchStrategy[Any]:
    dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64])
    devices = st.sampled_from(["cpu", "cuda", "cuda:3", "meta"]).map(torch.device)
    return dtypes | devices | st.lists(st.integers(0, 9), max_size=3).map(torch.Size)


HASHABLE: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**64, 2**600)
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.binary(max_size=4)
)
LEAVES: st.SearchStrategy[Any] = (
    HASHABLE
    | st.floats()
    | st.complex_numbers()
    | st.binary(max_size=4).map(bytearray)
    | arrays()
    | scalars_of_numpy()
    | of_torch()
    | st.sets(HASHABLE, max_size=3)
    | st.frozensets(HASHABLE, max_size=3)
)
KEYS: st.SearchStrategy[Any] = (
    st.text(max_size=3)
    | st.sampled_from(["$float", "$", "0", "1", "~1", "a/b"])
    | st.integers(-1, 2)
    | st.none()
    | st.tuples(st.integers(), st.text(max_size=1))
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(HASHABLE, st.integers(), max_size=3).map(Counter)
        | st.tuples(inner, inner).map(lambda pair: Point(*pair))
        | st.tuples(inner, inner).map(lambda pair: Progress(3, pair[0], [pair[1]]))
        | inner.map(Frozen)
    )


VALUES: st.SearchStrategy[Any] = st.recursive(LEAVES, nested, max_leaves=8)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]))
    shape = draw(st.sampled_from([(), (2,), (0, 3), (2, 1)]))
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def mixed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.text(max_size=2) | st.sampled_from(["0", "1", "a/b", "~"])
    return (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(names, inner, max_size=3)
        | st.dictionaries(st.integers(-1, 2), inner, max_size=3)
        | st.tuples(inner, inner).map(lambda pair: Point(*pair))
        | st.tuples(inner, inner).map(lambda pair: Progress(1, pair[0], [pair[1]]))
        | inner.map(Frozen)
    )


TREES: st.SearchStrategy[Any] = st.recursive(tensors() | LEAVES, mixed, max_leaves=8)
"""Of tensors and values."""
