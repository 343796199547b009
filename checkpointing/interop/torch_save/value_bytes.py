"""Converts tensors and plain values to torch.save's bytes and back. Requires torch."""

from __future__ import annotations

import importlib
import io
import pickle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpointing.errors import DamagedError, FormatError, SaveError
from checkpointing.format.tiles import Shape
from checkpointing.format.torch_dtypes import as_array, dtype_name, torch_dtype
from checkpointing.format.values.json_values import Json, encode
from checkpointing.storage import Buffer

_WRONG = (RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError, MemoryError)
_ERRORS = (pickle.UnpicklingError, *_WRONG)


def to_tensor(dtype: str, shape: Shape, raw: Buffer) -> Tensor:
    """Returns a new tensor of these raw bytes."""
    if not len(raw):
        return torch.empty(shape, dtype=torch_dtype(dtype))
    data = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    return data.view(torch_dtype(dtype)).reshape(shape)


def saved(thing: Any) -> bytes:
    """Returns the bytes that torch.save writes for a tensor or plain value."""
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def loaded_tensor(data: Buffer, dtype: str, shape: Shape, where: str) -> NDArray[Any]:
    """Returns the bits of the tensor in bytes of torch.save.

    Raises:
        DamagedError: they are not a tensor of that kind.
    """
    tensor = _load(data, where)
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_quantized:
        raise DamagedError(f"{where}: it is not a plain tensor but {type(tensor).__name__}")
    if dtype_name(tensor.dtype) != dtype or tuple(tensor.shape) != shape:
        raise DamagedError(
            f"{where}: is {dtype_name(tensor.dtype)}{list(tensor.shape)} instead of "
            f"{dtype}{list(shape)}"
        )
    # the bits of negated and conjugated views differ from the values they show
    return np.asarray(as_array(tensor.resolve_conj().resolve_neg()))


def loaded_value(data: Buffer, where: str) -> Json:
    """Returns the encoded plain value in bytes of torch.save.

    Raises:
        DamagedError: it cannot be read without running code.
        FormatError: it is not a plain value.
    """
    value = _load(data, where)
    try:
        return encode(value, where)
    except TypeError as error:
        raise FormatError(f"{where}: {error}") from error


def value_to_save(data: Buffer, name: str, original: object) -> Json:
    """Returns the encoded plain value in bytes of torch.save.

    Args:
        name: its full name.
        original: the object given to torch.save, if known, for the error message.

    Raises:
        SaveError: it is not a plain value.
    """
    try:
        value = _unpickled(data)
    except _ERRORS as error:
        raise refusal(name, original) from error
    return encoded(value, name)


def encoded(value: object, name: str) -> Json:
    """Returns a plain value in encoded form.

    Raises:
        SaveError: it is not a plain value.
    """
    try:
        return encode(value, name)
    except TypeError as error:
        raise SaveError(str(error)) from error


def refusal(name: str, original: object) -> SaveError:
    """Returns the error that says why a value cannot be saved: what in it is not a plain value."""
    try:
        encoded(original, name)
    except SaveError as error:
        return error
    return SaveError(
        f"cannot save {name!r}: the save planner does not return a plain value for it; leave it "
        "out, "
        "or save it with torch's own planner"
    )


def _load(data: Buffer, where: str) -> Any:
    try:
        return _unpickled(data)
    except _ERRORS as error:
        reason = str(error).partition("\n")[0]
        raise DamagedError(
            f"{where}: torch.load(weights_only=True) refuses it, so nothing in it was run: {reason}"
        ) from error


def _unpickled(data: Buffer) -> Any:
    with torch.serialization.safe_globals(_PLAIN):
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _bytes(*content: Any) -> bytes:
    """Replaces `bytes` in unpickling: accepts content, but never a number, which would be a
    size."""
    if content and type(content[0]) is int:
        raise ValueError("bytes of which only the size is known")
    return bytes(*content)


def _bytearray(*content: Any) -> bytearray:
    return bytearray(_bytes(*content))


def _of_numpy() -> list[Any]:
    """Returns the numpy functions and classes used by pickles of arrays and scalars, none of which
    calls its arguments."""
    inner = importlib.import_module("numpy._core.multiarray" if _IS_2 else "numpy.core.multiarray")
    made = [
        (getattr(inner, name), f"numpy.{module}.multiarray.{name}")
        for name in ("_reconstruct", "scalar")
        for module in ("core", "_core")
    ]
    kinds = [one for one in vars(np.dtypes).values() if isinstance(one, type)]
    return [*made, np.ndarray, np.dtype, *kinds]


_IS_2 = int(np.__version__.partition(".")[0]) >= 2
_BYTES: list[Any] = [(_bytes, "builtins.bytes"), (_bytearray, "builtins.bytearray")]
_PLAIN = [frozenset, complex, *_BYTES, *_of_numpy()]
"""Classes and functions allowed besides those of torch.load(weights_only=True)."""
