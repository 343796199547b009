"""Encodes values of classes that JSON lacks as a tag and plain JSON: bytes, complex numbers,
numpy's arrays and scalars, torch's sizes, dtypes and devices, and small tensors within a value.
torch is imported only for torch's own types."""

from __future__ import annotations

import base64
import math
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import FormatError

MAX_BYTES = 16 << 20
"""Largest array or byte string in bytes: values are stored as text, again with every save."""

_NUMPY = re.compile(r"[<>|](b1|[iu][1248]|f[248]|c8|c16|[SU]\d+|[mM]8(\[\d*[A-Za-zμ]+\])?)")
"""numpy's names of dtypes that have the same bits on every machine and no Python objects."""
_TORCH_NAME = re.compile(r"[a-z]\w*")

Dumped = tuple[str, Any]


def dump(value: Any, path: str) -> Dumped | None:
    """Returns the tag of a value and the JSON below it; None if it is of no such class.

    Raises:
        TypeError: it is an array of Python objects or of a machine-dependent dtype, or too large.
    """
    if type(value) in (bytes, bytearray):
        return f"${type(value).__name__}", _text(value, path)
    if type(value) is complex:
        return "$complex", [value.real, value.imag]
    if isinstance(value, np.generic) or type(value) is np.ndarray:
        return _dump_numpy(value, path)
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if type(value) is torch.Size:
        return "$size", [int(extent) for extent in value]
    if type(value) is torch.dtype:
        return "$dtype", str(value).removeprefix("torch.")
    if type(value) is torch.device:
        return "$device", str(value)
    return _dump_tensor(value, path) if isinstance(value, torch.Tensor) else None


def load(tag: str, inner: Any) -> Any:
    """Returns the value that was given to `dump`.

    Raises:
        FormatError: its kind is unknown to this version, or to this machine's numpy or torch.
        TypeError, ValueError: it is not a result of `dump`.
    """
    if tag not in _LOADERS:
        raise FormatError(
            f"unknown kind of value {tag!r}: was it written by a newer version of hpckit?"
        )
    return _LOADERS[tag](inner)


def _dump_numpy(value: Any, path: str) -> Dumped:
    name = value.dtype.str
    if not _NUMPY.fullmatch(name) or value.dtype.names is not None:
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        raise TypeError(
            f"cannot save the numpy {kind} of dtype {value.dtype} at {path!r}: dtypes of numbers, "
            "dates, bytes and text are saved; save the fields of a structured array one by one, "
            "objects as a list, and long doubles as float64"
        )
    if isinstance(value, np.str_):
        return "$scalar", ["U", "".join(value)]  # numpy's own str() cuts off trailing zeros
    if isinstance(value, np.bytes_):
        return "$scalar", ["S", _text(bytes(value), path)]
    if isinstance(value, np.generic):
        return "$scalar", [name, _text(value.tobytes(), path)]
    _check_size(value.nbytes, path)
    return "$array", [name, list(value.shape), _text(value.tobytes(), path)]


def _dump_tensor(tensor: Any, path: str) -> Dumped:
    import torch

    from checkpointing.format.torch_dtypes import as_bytes, dtype_name

    is_dense = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta
    if type(tensor) is not torch.Tensor or not is_dense:
        raise TypeError(
            f"cannot save the tensor at {path!r}: it is of class {type(tensor).__qualname__} and "
            f"layout {tensor.layout} on {tensor.device}, but only plain dense tensors are saved "
            "inside a value; put it into a dict or list of the state"
        )
    _check_size(tensor.nbytes, path)
    held = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    raw = bytes(as_bytes(held)) if held.numel() else b""
    return "$tensor", [dtype_name(held.dtype), list(held.shape), _text(raw, path)]


def _text(raw: Any, path: str) -> str:
    _check_size(len(raw), path)
    return base64.b64encode(raw).decode("ascii")


def _check_size(size: int, path: str) -> None:
    if size > MAX_BYTES:
        raise TypeError(
            f"cannot save the {size} bytes at {path!r} as a value: at most {MAX_BYTES} are "
            "allowed; put them into a tensor that a dict or list of the state holds, such as "
            "torch.from_numpy(array), which shares the array's memory"
        )


def _bytes(text: Any) -> bytes:
    return base64.b64decode(text, validate=True)


def _content(what: str, shape: Any, itemsize: int, text: Any) -> bytearray:
    """Returns the bytes of an array or tensor; raises ValueError if their number does not fit its
    shape."""
    raw = bytearray(_bytes(text))
    if not all(type(extent) is int and extent >= 0 for extent in shape):
        raise ValueError(f"{what} of shape {shape}")
    if math.prod(shape) * itemsize != len(raw):
        raise ValueError(f"{len(raw)} bytes for {what} of shape {shape}")
    return raw


def _load_complex(inner: Any) -> complex:
    real, imaginary = inner
    if type(real) is not float or type(imaginary) is not float:
        raise ValueError("the parts of a complex number are not floats")
    return complex(real, imaginary)


def _load_array(inner: Any) -> NDArray[Any]:
    name, shape, text = inner
    dtype = _numpy_dtype(name)
    return np.ndarray(
        tuple(shape), dtype, _content(f"an array {name}", shape, dtype.itemsize, text)
    )


def _load_scalar(inner: Any) -> Any:
    name, text = inner
    if name == "U" and type(text) is str:
        return np.str_(text)
    if name == "S":
        return np.bytes_(_bytes(text))
    raw, dtype = _bytes(text), _numpy_dtype(name)
    if dtype.itemsize != len(raw):
        raise ValueError(f"{len(raw)} bytes for a scalar {name}")
    return np.frombuffer(raw, dtype)[0]


def _numpy_dtype(name: Any) -> np.dtype[Any]:
    if type(name) is not str or not _NUMPY.fullmatch(name):
        raise FormatError(f"unknown dtype of an array {name!r}: was it written by a newer version?")
    try:
        return np.dtype(name)
    except TypeError as error:
        raise FormatError(f"unknown dtype of an array {name!r}: {error}") from error


def _load_size(inner: Any) -> Any:
    import torch

    if type(inner) is not list or not all(type(extent) is int for extent in inner):
        raise ValueError(f"a size of {inner!r}")
    return torch.Size(inner)


def _load_dtype(name: Any) -> Any:
    import torch

    found = vars(torch).get(name) if _TORCH_NAME.fullmatch(name) else None
    if not isinstance(found, torch.dtype):
        raise FormatError(f"this torch has no dtype {name!r}: was it written with a newer one?")
    return found


def _load_tensor(inner: Any) -> Any:
    import torch

    name, shape, text = inner
    dtype = _load_dtype(name)
    raw = _content(f"a tensor {name}", shape, dtype.itemsize, text)
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(shape)


def _load_device(name: Any) -> Any:
    import torch

    try:
        return torch.device(str(name))
    except RuntimeError as error:
        raise FormatError(f"this torch has no device {name!r}: {error}") from error


_LOADERS: dict[str, Callable[[Any], Any]] = {
    "$bytes": _bytes,
    "$bytearray": lambda text: bytearray(_bytes(text)),
    "$complex": _load_complex,
    "$array": _load_array,
    "$scalar": _load_scalar,
    "$size": _load_size,
    "$dtype": _load_dtype,
    "$device": _load_device,
    "$tensor": _load_tensor,
}
