"""Converts small states of third-party objects, with tensors and arrays in them, to plain
values."""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from checkpointing.errors import FormatError
from checkpointing.format.torch_dtypes import as_bytes, dtype_name

MAX_BYTES = 1 << 20  # of one tensor or array, which is stored as text in every save
_TENSOR, _ARRAY, _SCALAR, _DICT = "$tensor", "$array", "$scalar", "$plain"
_NUMBERS = re.compile(r"[<>|=][biufc][0-9]+")  # numpy's names of dtypes without Python objects


def pack(value: Any, path: str) -> Any:
    """Returns `value` with tensors, arrays and numpy scalars as plain values; `unpack` is the
    inverse.

    Args:
        path: name of the value, for the error.

    Raises:
        TypeError: a tensor or array has more than 1 MiB, or Python objects in it.
    """
    if isinstance(value, Tensor):
        held = value.detach().cpu().contiguous()
        text = _text(bytes(as_bytes(held)) if held.numel() else b"", path)
        return {_TENSOR: [dtype_name(held.dtype), list(held.shape), text]}
    if isinstance(value, np.ndarray | np.generic):
        if not _NUMBERS.fullmatch(value.dtype.str):
            raise TypeError(f"cannot save {path!r}: a numpy array of dtype {value.dtype}")
        kind = _ARRAY if isinstance(value, np.ndarray) else _SCALAR
        return {kind: [value.dtype.str, list(value.shape), _text(value.tobytes(), path)]}
    if type(value) in (list, tuple):
        return type(value)(pack(child, f"{path}/{i}") for i, child in enumerate(value))
    if type(value) is dict:
        children = {key: pack(child, f"{path}/{key}") for key, child in value.items()}
        is_tagged = len(value) == 1 and str(next(iter(value))).startswith("$")
        return {_DICT: children} if is_tagged else children
    return value


def unpack(value: Any) -> Any:
    """Returns the value that was given to `pack`.

    Raises:
        FormatError: some bytes are not a tensor or an array of numbers.
    """
    if type(value) in (list, tuple):
        return type(value)(unpack(child) for child in value)
    if type(value) is not dict:
        return value
    if len(value) == 1:
        ((tag, inner),) = value.items()
        if tag == _DICT:
            return {key: unpack(child) for key, child in inner.items()}
        if tag in (_TENSOR, _ARRAY, _SCALAR):
            return _unpack_numbers(tag, *inner)
    return {key: unpack(child) for key, child in value.items()}


def _unpack_numbers(tag: str, dtype: str, shape: list[int], text: str) -> Any:
    raw = bytearray(base64.b64decode(text))
    if tag == _TENSOR:
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype):
            raise FormatError(
                f"unknown dtype of a tensor {dtype!r}: was it written by a newer torch?"
            )
        flat = (
            torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
        )
        return flat.view(kind).reshape(shape)
    if not _NUMBERS.fullmatch(dtype):
        raise FormatError(f"unknown dtype of an array {dtype!r}")
    array = np.frombuffer(raw, np.dtype(dtype)).reshape(shape)
    return array if tag == _ARRAY else array[()]


def _text(raw: bytes, path: str) -> str:
    if len(raw) > MAX_BYTES:
        raise TypeError(
            f"cannot save {path!r}: a tensor of {len(raw)} bytes among values, but at most "
            f"{MAX_BYTES} are allowed: keep it in a buffer of the module"
        )
    return base64.b64encode(raw).decode()
