"""Reads the pickle of a torch.save file as a tree of plain values and of tensors that are still in
the file.

The pickle is read as data (`checkpointing.interop.pickle_reader`). Each object in it must be one
that this module knows; any other is refused, with its name and its place in the tree.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.element_types import ELEMENTS, element
from checkpointing.format.tiles import Shape
from checkpointing.interop import pickle_reader
from checkpointing.interop.pickle_reader import PersistentId, PickledGlobal, PickledObject
from checkpointing.interop.tensor_names import full_name

METADATA = "_metadata"
"""The attribute of the OrderedDict of a module's state that has the modules' versions."""

_DEEPEST = 200  # levels of containers; a list that contains itself has more
_BASE_NODES, _NODES_PER_BYTE = 1_000_000, 16
"""Number of objects in the tree, and additional ones for each byte of the pickle. A container that
occurs many times counts each time, since a small pickle could otherwise describe a tree that
exceeds any memory."""
_MOST_BITS = 14_000  # of an integer; those in JSON have at most 4300 digits
_MOST_DIMS = 32

_STORAGES = {
    **{"Half": "float16", "BFloat16": "bfloat16", "Float": "float32", "Double": "float64"},
    **{"Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64", "Byte": "uint8"},
    **{"Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128"},
}
_TYPES = {f"torch.{prefix}Storage": dtype for prefix, dtype in _STORAGES.items()}
_UNTYPED = ("torch.storage.UntypedStorage", "torch.UntypedStorage")
_PLAIN = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")
_HARMLESS = {"_is_buffer", "persistent", "_is_param"}
"""Attributes by which torch itself distinguishes a buffer from a parameter."""

_KINDS = {
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor: save tensor.to_dense()",
    "torch._utils._rebuild_sparse_csr_tensor": "a sparse tensor: save tensor.to_dense()",
    "torch._utils._rebuild_qtensor": "a quantized tensor: save tensor.int_repr() and its scales",
    "torch._utils._rebuild_nested_tensor": "a nested tensor: save its tensors as a list",
    "torch._utils._rebuild_meta_tensor_no_storage": "a tensor on the meta device, without data",
    "torch.distributed.tensor.DTensor": "a DTensor: save tensor.full_tensor(), or use dcp.save",
}


@dataclass(frozen=True)
class PickledTensor:
    """A tensor in a file: a view of a storage. Offset and strides count elements."""

    dtype: str
    shape: Shape
    storage: str  # name of its record
    storage_bytes: int
    offset: int
    strides: Shape
    is_conjugate: bool = False
    is_negative: bool = False

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * element(self.dtype).itemsize

    @property
    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return 0 in self.shape
            expected *= size
        return True


def parse(data: bytes, where: str) -> Any:
    """Returns the tree that a file's pickle describes: plain values, `PickledTensor` and numpy
    arrays.

    Args:
        where: name of the file, for messages.

    Raises:
        FormatError: it contains something else, or too much.
        DamagedError: it is not a whole pickle of torch.save.
    """
    most = _BASE_NODES + _NODES_PER_BYTE * len(data)
    return _Tree(where, most).of(pickle_reader.read(data, None, where), (), _DEEPEST)


class _Tree:
    def __init__(self, where: str, most: int) -> None:
        self._where, self._left = where, most

    def of(self, thing: Any, path: tuple[object, ...], levels: int) -> Any:
        """Returns the part of the tree at `path`."""
        self._left -= 1
        if not levels or self._left < 0:
            more = (
                "objects than its size allows"
                if levels
                else f"than {_DEEPEST} levels of containers"
            )
            raise FormatError(
                f"{self._where}: has more {more}, or holds itself; save fewer objects in one file"
            )
        if isinstance(thing, dict):
            return self._entries(thing, path, levels)
        if isinstance(thing, list | tuple | set | frozenset):
            made = (self.of(one, (*path, i), levels - 1) for i, one in enumerate(thing))
            return type(thing)(made)
        if isinstance(thing, PickledObject):
            return self._object(thing, path, levels)
        if isinstance(thing, PickledGlobal):
            return self._named(thing, path)
        if isinstance(thing, PersistentId):
            raise self._refused(path, "a bare storage: save a tensor of it")
        if type(thing) is int and thing.bit_length() > _MOST_BITS:
            raise self._refused(path, f"an integer of {thing.bit_length()} bits")
        return thing

    def _entries(
        self, entries: Mapping[Any, Any], path: tuple[object, ...], levels: int
    ) -> dict[Any, Any]:
        return {
            self.of(key, (*path, "a key"), levels - 1): self.of(value, (*path, key), levels - 1)
            for key, value in entries.items()
        }

    def _object(self, record: PickledObject, path: tuple[object, ...], levels: int) -> Any:
        if record.kind in _MAKERS:
            try:
                return _MAKERS[record.kind](self, record, path, levels)
            except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
                raise DamagedError(
                    f"{self._where}: {self._shown(path)} is not a {record.kind} that torch.save "
                    f"writes ({error})"
                ) from error
        known = _KINDS.get(record.kind)
        raise self._refused(path, known or self._unknown(f"an object of {record.kind}"))

    def _named(self, name: PickledGlobal, path: tuple[object, ...]) -> Any:
        module, _, last = name.name.rpartition(".")
        if module != "torch" or last not in ELEMENTS:
            raise self._refused(path, self._unknown(name.name))
        import torch

        return getattr(torch, last)

    def _unknown(self, what: str) -> str:
        return (
            f"{what}, which is neither a tensor nor a plain value; nothing in it was run: load the "
            "file where you trust it, leave this out or convert it to plain values, and save it "
            "again"
        )

    def _refused(self, path: tuple[object, ...], what: str) -> FormatError:
        return FormatError(f"{self._where}: {self._shown(path)} is {what}")

    def _shown(self, path: tuple[object, ...]) -> str:
        return repr(full_name(path)) if path else "what it holds"

    # --- known objects; arguments that do not fit raise ValueError and the like ---

    def tensor(self, record: PickledObject, path: tuple[object, ...], levels: int) -> PickledTensor:
        """`_rebuild_tensor(storage, offset, size, stride)`; v2 adds requires_grad, hooks, metadata;
        v3 adds a dtype before the metadata."""
        storage, offset, size, strides, *rest = record.args
        dtype, name, count = _storage(storage)
        if record.kind.endswith("_v3"):
            dtype = rest.pop(2).name.removeprefix("torch.")
        if dtype is None:
            raise ValueError("no dtype")
        kind = element(dtype)
        # an untyped storage counts bytes
        total = count * (1 if _is_untyped(storage) else kind.itemsize)
        shape, steps = _numbers(size), _numbers(strides)
        metadata = rest[2] if len(rest) > 2 and rest[2] else {}
        if unknown := metadata.keys() - {"conj", "neg"}:
            raise self._refused(path, f"a tensor with {', '.join(map(repr, sorted(unknown)))}")
        found = PickledTensor(
            dtype,
            shape,
            storage=name,
            storage_bytes=total,
            offset=_number(offset),
            strides=steps,
            is_conjugate=bool(metadata.get("conj")),
            is_negative=bool(metadata.get("neg")),
        )
        _check_inside(found, kind.itemsize)
        return found

    def parameter(self, record: PickledObject, path: tuple[object, ...], levels: int) -> Any:
        """`_rebuild_parameter(data, requires_grad, hooks)`, and with a state: its attributes."""
        held = self.of(record.args[0], path, levels - 1)
        self._check_attributes(record.args[3] if len(record.args) > 3 else None, path)
        return held

    def typed(self, record: PickledObject, path: tuple[object, ...], levels: int) -> Any:
        """`_rebuild_from_type_v2(function, class, arguments, state)`: a tensor of a class, or with
        attributes."""
        function, kind, args, state = record.args
        if kind.name not in _PLAIN:
            raise self._refused(path, self._unknown(f"a tensor of class {kind.name}"))
        self._check_attributes(state, path)
        return self.of(PickledObject(function.name, args), path, levels - 1)

    def _check_attributes(self, state: Any, path: tuple[object, ...]) -> None:
        parts = state if isinstance(state, tuple) else (state,)
        names = {name for part in parts if part for name in part} - _HARMLESS
        if names:
            shown = ", ".join(sorted(map(str, names))[:4])
            raise self._refused(path, f"a tensor with attributes ({shown}): save tensor.detach()")

    def ordered(self, record: PickledObject, path: tuple[object, ...], levels: int) -> Any:
        entries = dict(*record.args) | record.entries
        made = OrderedDict(self._entries(entries, path, levels))
        attributes = record.state or {}
        if attributes.keys() - {METADATA}:
            raise self._refused(path, f"an OrderedDict with attributes ({', '.join(attributes)})")
        for name, value in attributes.items():
            vars(made)[name] = self.of(value, (*path, name), levels - 1)
        return made

    def counter(self, record: PickledObject, path: tuple[object, ...], levels: int) -> Any:
        return Counter(self._entries(dict(*record.args) | record.entries, path, levels))

    def set(self, record: PickledObject, path: tuple[object, ...], levels: int) -> Any:
        (things,) = record.args
        return self.of(
            {"set": set, "frozenset": frozenset}[_short(record)](things), path, levels - 1
        )

    def bytes(self, record: PickledObject, path: tuple[object, ...], levels: int) -> bytes:
        """`_codecs.encode(text, "latin1")`: how protocol 2 pickles bytes."""
        text, coding = record.args
        if coding != "latin1":
            raise ValueError(f"coded in {coding!r}")
        return str.encode(text, "latin1")

    def bytearray(self, record: PickledObject, path: tuple[object, ...], levels: int) -> bytearray:
        if not record.args:
            return bytearray()
        held = record.args[0]
        if isinstance(held, str):  # protocol 2
            return bytearray(held, *record.args[1:])
        return bytearray(
            self.of(held, path, levels - 1) if isinstance(held, PickledObject) else b"" + held
        )

    def complex(self, record: PickledObject, path: tuple[object, ...], levels: int) -> complex:
        return complex(*record.args)

    def size(self, record: PickledObject, path: tuple[object, ...], levels: int) -> Any:
        import torch

        return torch.Size(_numbers(record.args[0]))

    def device(self, record: PickledObject, path: tuple[object, ...], levels: int) -> Any:
        import torch

        try:
            return torch.device(*record.args)
        except RuntimeError as error:
            raise ValueError(str(error).partition("\n")[0]) from error

    def array(self, record: PickledObject, path: tuple[object, ...], levels: int) -> NDArray[Any]:
        """`_reconstruct(ndarray, (0,), b"b")` with a state: version, shape, dtype, whether it is in
        Fortran order, bytes."""
        if record.args[0].name != "numpy.ndarray":
            raise self._refused(path, self._unknown(f"an array of class {record.args[0].name}"))
        _, shape, kind, is_fortran, data = record.state
        if isinstance(data, PickledObject):
            data = self.of(data, path, levels - 1)
        if not isinstance(data, bytes):
            raise self._refused(path, "an array of objects: save a list")
        found = np.frombuffer(data, self._dtype(kind, path))
        return found.reshape(_numbers(shape), order="F" if is_fortran else "C")

    def scalar(self, record: PickledObject, path: tuple[object, ...], levels: int) -> Any:
        """`scalar(dtype, bytes)`."""
        kind, data = record.args
        data = self.of(data, path, levels - 1)
        return np.frombuffer(data, self._dtype(kind, path), 1)[0]

    def _dtype(self, record: PickledObject, path: tuple[object, ...]) -> np.dtype[Any]:
        """`dtype("f4", False, True)` with a state that has the byte order as its second element."""
        name = record.args[0]
        if record.kind != "numpy.dtype" or not isinstance(name, str) or name[:1] not in "biufc":
            raise self._refused(
                path, f"numpy's of dtype {name!r}: only numbers and bools are supported"
            )
        order: Any = record.state[1] if record.state else "|"
        return np.dtype(name).newbyteorder(order)


_Maker = Callable[[_Tree, PickledObject, tuple[object, ...], int], Any]
_MAKERS: dict[str, _Maker] = {
    **{f"torch._utils._rebuild_tensor{v}": _Tree.tensor for v in ("", "_v2", "_v3")},
    "torch._utils._rebuild_parameter": _Tree.parameter,
    "torch._utils._rebuild_parameter_with_state": _Tree.parameter,
    "torch._tensor._rebuild_from_type_v2": _Tree.typed,
    "collections.OrderedDict": _Tree.ordered,
    "collections.Counter": _Tree.counter,
    "_codecs.encode": _Tree.bytes,
    "torch.Size": _Tree.size,
    "torch.device": _Tree.device,
    **{f"{m}.bytearray": _Tree.bytearray for m in ("builtins", "__builtin__")},
    **{f"{m}.complex": _Tree.complex for m in ("builtins", "__builtin__")},
    **{f"{m}.{s}": _Tree.set for m in ("builtins", "__builtin__") for s in ("set", "frozenset")},
    **{f"numpy.{m}.multiarray._reconstruct": _Tree.array for m in ("core", "_core")},
    **{f"numpy.{m}.multiarray.scalar": _Tree.scalar for m in ("core", "_core")},
}


def _short(record: PickledObject) -> str:
    return record.kind.rpartition(".")[2]


def _storage(thing: Any) -> tuple[str | None, str, int]:
    """Returns dtype, name and number of elements of `("storage", class, name, device,
    elements)`."""
    word, kind, name, _, count = thing.id
    if word != "storage" or not isinstance(name, str):
        raise ValueError("no storage")
    dtype = None if kind.name in _UNTYPED else _TYPES.get(kind.name)
    if dtype is None and kind.name not in _UNTYPED:
        raise ValueError(f"a storage of class {kind.name}")
    return dtype, name, _number(count)


def _is_untyped(thing: Any) -> bool:
    return thing.id[1].name in _UNTYPED


def _number(thing: Any) -> int:
    (number,) = _numbers((thing,))
    return number


def _numbers(thing: Any) -> Shape:
    if isinstance(thing, PickledObject) and thing.kind == "torch.Size":
        (thing,) = thing.args
    if not isinstance(thing, tuple | list) or not all(type(n) is int and n >= 0 for n in thing):
        raise ValueError("whole numbers expected")
    return tuple(thing)


def _check_inside(found: PickledTensor, itemsize: int) -> None:
    """Check that a tensor lies inside its storage."""
    if len(found.shape) != len(found.strides) or len(found.shape) > _MOST_DIMS:
        raise ValueError(f"shape {found.shape} with strides {found.strides}")
    if 0 in found.shape:
        return
    steps = zip(found.shape, found.strides, strict=True)
    last = found.offset + sum((size - 1) * stride for size, stride in steps)
    if (last + 1) * itemsize > found.storage_bytes:
        raise ValueError(f"it ends beyond the {found.storage_bytes} bytes of its storage")


def conjugated(found: PickledTensor, cells: NDArray[Any]) -> NDArray[Any]:
    """Returns the bits of the values that cells show: torch marks a conjugated or negated view by a
    flag.

    Args:
        cells: a contiguous copy.
    """
    if found.is_conjugate or found.is_negative:
        word = element(found.dtype).word
        words = cells.reshape(-1).view(np.uint8).view(f"<u{word}")
        sign = np.array(1 << (8 * word - 1), words.dtype)
        if found.is_negative:
            words ^= sign
        if found.is_conjugate:
            words[1::2] ^= sign
    return cells
