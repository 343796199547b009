"""Tensors and plain values to and from torch.save's bytes. Needs torch."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpointing.dtypes import as_array, dtype_name, torch_dtype
from checkpointing.errors import DamagedError, FormatError, SaveError
from checkpointing.format.tiles import Shape
from checkpointing.storage import Buffer
from checkpointing.values import Json, encode

_ERRORS = (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, AttributeError)


def to_tensor(dtype: str, shape: Shape, raw: Buffer) -> Tensor:
    """A tensor of its own of these raw bytes."""
    if not len(raw):
        return torch.empty(shape, dtype=torch_dtype(dtype))
    data = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    return data.view(torch_dtype(dtype)).reshape(shape)


def saved(thing: Any) -> bytes:
    """What torch.save makes of a tensor or plain value."""
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def loaded_tensor(data: Buffer, dtype: str, shape: Shape, where: str) -> NDArray[Any]:
    """The bits of the tensor in what torch.save wrote.

    Raises:
        DamagedError: it is no such tensor.
    """
    tensor = _load(data, where)
    if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_quantized:
        raise DamagedError(f"{where}: is no plain tensor but {type(tensor).__name__}")
    if dtype_name(tensor.dtype) != dtype or tuple(tensor.shape) != shape:
        raise DamagedError(
            f"{where}: is {dtype_name(tensor.dtype)}{list(tensor.shape)} instead of "
            f"{dtype}{list(shape)}"
        )
    # negated and conjugated views have other bits than they show
    return np.asarray(as_array(tensor.resolve_conj().resolve_neg()))


def loaded_value(data: Buffer, where: str) -> Json:
    """The plain value in what torch.save wrote, encoded.

    Raises:
        DamagedError: it cannot be read without running code.
        FormatError: it is no plain value.
    """
    value = _load(data, where)
    try:
        return encode(value, where)
    except TypeError as error:
        raise FormatError(f"{where}: {error}") from error


def value_to_save(data: Buffer, name: str, original: object) -> Json:
    """The plain value in what torch.save wrote, encoded.

    Args:
        name: its full name.
        original: what torch.save was given, if it is known: to say what it is.

    Raises:
        SaveError: it is no plain value.
    """
    try:
        value = _unpickled(data)
    except _ERRORS as error:
        raise refusal(name, original) from error
    if (path := _tensor_in(value, name)) is not None:
        raise SaveError(
            f"cannot save the tensor at {path!r}: torch.distributed.checkpoint takes {name!r}, a "
            f"{type(value).__name__}, for one value; put its tensors into a list or dict"
        )
    try:
        return encode(value, name)
    except TypeError as error:
        raise SaveError(str(error)) from error


def refusal(name: str, original: object) -> SaveError:
    """Why a value is not saved: what in it is no plain value."""
    try:
        encode(original, name)
    except TypeError as error:
        return SaveError(str(error))
    return SaveError(f"cannot save {name!r}: a state holds tensors and plain values; leave it out")


def _tensor_in(value: object, path: str) -> str | None:
    """Where the first tensor in a value is."""
    if isinstance(value, Tensor):
        return path
    if not isinstance(value, dict | list | tuple):
        return None
    children = value.items() if isinstance(value, dict) else enumerate(value)
    found = (_tensor_in(child, f"{path}/{key}") for key, child in children)
    return next((one for one in found if one is not None), None)


def _load(data: Buffer, where: str) -> Any:
    try:
        return _unpickled(data)
    except _ERRORS as error:
        reason = str(error).partition("\n")[0]
        raise DamagedError(
            f"{where}: torch.load(weights_only=True) refuses it, so that nothing of it was run: "
            f"{reason}"
        ) from error


def _unpickled(data: Buffer) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
