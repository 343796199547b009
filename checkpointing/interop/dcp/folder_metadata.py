"""Reads the contents of a folder of torch.distributed.checkpoint without torch: its `.metadata`, a
pickle, is read as data and never unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.element_types import element
from checkpointing.format.tiles import Box, Shape
from checkpointing.interop import pickle_reader
from checkpointing.interop.atomic_files import InputFile
from checkpointing.interop.pickle_reader import PickledGlobal, PickledObject

FILE = ".metadata"
_MAX_BYTES = 2 << 30  # largest pickle; a larger one is refused before anything is read

_METADATA = "torch.distributed.checkpoint.metadata."
_FILES = "torch.distributed.checkpoint.filesystem."
_DTYPES = {f"torch.{name}" for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2")}
_DTYPES |= {f"torch.{name}" for name in ("float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2")}
_DTYPES |= {f"torch.{name}" for name in ("float16", "bfloat16", "float32", "float64", "bool")}
_DTYPES |= {f"torch.{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_DTYPES |= {f"torch.complex{bits}" for bits in (32, 64, 128)}
_PROPERTIES = {
    f"{_METADATA}TensorProperties",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",  # torch before 2.3
}
ALLOWED = {
    *(f"{_METADATA}{name}" for name in ("Metadata", "MetadataIndex", "StorageMeta")),
    *(f"{_METADATA}{name}" for name in ("TensorStorageMetadata", "BytesStorageMetadata")),
    *(f"{_METADATA}{name}" for name in ("ChunkStorageMetadata", "_MEM_FORMAT_ENCODING")),
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    *_PROPERTIES,
    *(f"{_FILES}{name}" for name in ("_StorageInfo", "_StoragePrefix")),
    *(f"pathlib.{name}" for name in ("PosixPath", "PurePosixPath", "WindowsPath")),
    *(f"pathlib._local.{name}" for name in ("PosixPath", "WindowsPath")),
    "torch.Size",
    "torch.serialization._get_layout",
    "collections.OrderedDict",
    *_DTYPES,
}

PathKeys = tuple[str | int, ...]


@dataclass(frozen=True)
class FileRange:
    """A range of a file of the folder."""

    file: str
    offset: int
    length: int  # bytes


@dataclass(frozen=True)
class DcpTensor:
    """One tensor, and the files and ranges of its chunks."""

    dtype: str
    shape: Shape
    chunks: Mapping[Box, FileRange]


@dataclass(frozen=True)
class DcpFolderContents:
    """The contents of a folder. Names are DCP's own, dotted."""

    tensors: Mapping[str, DcpTensor]
    values: Mapping[str, FileRange]
    paths: Mapping[str, PathKeys]  # the keys of entries that were in nested dicts


def read_contents(folder: Path) -> DcpFolderContents:
    """Returns the contents of a folder.

    Raises:
        FileNotFoundError: the folder is not a complete DCP checkpoint.
        FormatError: it is of an unknown kind, or its pickle refers to classes that it should not.
        DamagedError: its metadata is damaged.
    """
    path = folder / FILE
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: {folder} is not a checkpoint of torch.distributed.checkpoint, "
            "or its save never finished"
        )
    with InputFile(path) as file:
        if file.size > _MAX_BYTES:
            raise DamagedError(f"{path}: has {file.size} bytes, too many for metadata")
        data = bytes(file.read(0, file.size))
    return _Parser(str(path)).contents(pickle_reader.read(data, ALLOWED, str(path)))


class _Parser:
    """Converts the content of the pickle to `DcpFolderContents`; every mismatch is a
    DamagedError."""

    def __init__(self, where: str) -> None:
        self._where = where

    def contents(self, root: Any) -> DcpFolderContents:
        fields = self._fields(root, "Metadata")
        entries = self._dict(fields.get("state_dict_metadata"), "state_dict_metadata")
        places = self._places(self._dict(fields.get("storage_data"), "storage_data"))
        tensors, values = {}, {}
        for name, entry in entries.items():
            kind = entry.kind if isinstance(entry, PickledObject) else None
            if not isinstance(name, str):
                raise self._mismatch("a name", name)
            if kind == f"{_METADATA}BytesStorageMetadata":
                values[name] = self._place(places, name, None)
            elif kind == f"{_METADATA}TensorStorageMetadata":
                tensors[name] = self._tensor(name, entry, places)
            else:
                raise self._mismatch(f"the entry of {name!r}", kind)
        return DcpFolderContents(tensors, values, self._paths(fields.get("planner_data")))

    def _tensor(
        self, name: str, entry: PickledObject, places: Mapping[tuple[str, Shape | None], FileRange]
    ) -> DcpTensor:
        fields = self._fields(entry, "TensorStorageMetadata")
        dtype, shape = self._dtype(name, fields.get("properties")), self._shape(fields.get("size"))
        listed = fields.get("chunks")
        if not isinstance(listed, list):
            raise self._mismatch(f"the chunks of {name!r}", listed)
        chunks = {}
        for item in listed:
            sides = self._fields(item, "ChunkStorageMetadata")
            box = Box(self._shape(sides.get("offsets")), self._shape(sides.get("sizes")))
            if not len(box.offsets) == len(box.sizes) == len(shape):
                raise self._mismatch(f"a chunk of {name!r}", box)
            if box.count:
                chunks[box] = self._place(places, name, box.offsets)
        if not chunks and 0 not in shape:
            raise DamagedError(f"{self._where}: tensor {name!r} has no chunks")
        return DcpTensor(dtype, shape, chunks)

    def _dtype(self, name: str, properties: Any) -> str:
        if not isinstance(properties, PickledObject) or properties.kind not in _PROPERTIES:
            raise self._mismatch(f"the properties of {name!r}", properties)
        state = properties.state
        first = state[0] if isinstance(state, tuple) and state else None
        if not isinstance(first, PickledGlobal) or first.name not in _DTYPES:
            raise self._mismatch(f"the dtype of {name!r}", first)
        return element(first.name.removeprefix("torch.")).name

    def _places(self, stored: Mapping[Any, Any]) -> dict[tuple[str, Shape | None], FileRange]:
        found = {}
        for index, info in stored.items():
            key, place = self._fields(index, "MetadataIndex"), self._info(info)
            name, offset = key.get("fqn"), key.get("offset")
            if not isinstance(name, str):
                raise self._mismatch("a name in storage_data", name)
            found[name, None if offset is None else self._shape(offset)] = place
        return found

    def _info(self, info: Any) -> FileRange:
        fields = self._fields(info, "_StorageInfo", _FILES)
        name = fields.get("relative_path")
        if fields.get("transform_descriptors"):
            raise FormatError(
                f"{self._where}: {name!r} is stored with the transforms "
                f"{fields['transform_descriptors']}, which are not supported here: save it without"
            )
        if not isinstance(name, str) or Path(name).name != name or "\0" in name:
            raise self._mismatch("a file's name", name)
        return FileRange(name, self._count(fields.get("offset")), self._count(fields.get("length")))

    def _count(self, thing: Any) -> int:
        if type(thing) is not int or thing < 0:
            raise self._mismatch("a number of bytes", thing)
        return thing

    def _place(
        self,
        places: Mapping[tuple[str, Shape | None], FileRange],
        name: str,
        offset: Shape | None,
    ) -> FileRange:
        place = places.get((name, offset))
        if place is None:
            at = "" if offset is None else f" at {list(offset)}"
            raise DamagedError(f"{self._where}: does not say where {name!r}{at} is")
        return place

    def _paths(self, planner_data: Any) -> dict[str, PathKeys]:
        if planner_data is None:
            return {}
        paths = self._dict(planner_data, "planner_data")
        for name, path in paths.items():
            is_path = isinstance(path, tuple) and all(type(key) in (str, int) for key in path)
            if not isinstance(name, str) or not is_path or not path:
                raise self._mismatch("planner_data", (name, path))
        return paths

    def _fields(self, thing: Any, kind: str, module: str = _METADATA) -> dict[str, Any]:
        """Returns the fields of a dataclass."""
        if not isinstance(thing, PickledObject) or thing.kind != module + kind:
            raise self._mismatch(kind, thing)
        return self._dict({} if thing.state is None else thing.state, kind)

    def _shape(self, thing: Any) -> Shape:
        if isinstance(thing, PickledObject) and thing.kind == "torch.Size" and len(thing.args) == 1:
            thing = thing.args[0]
        if not isinstance(thing, tuple | list) or not all(type(n) is int and n >= 0 for n in thing):
            raise self._mismatch("a shape", thing)
        return tuple(thing)

    def _dict(self, thing: Any, what: str) -> dict[Any, Any]:
        if isinstance(thing, PickledObject) and thing.kind == "collections.OrderedDict":
            return thing.entries
        if not isinstance(thing, dict):
            raise self._mismatch(what, thing)
        return thing

    def _mismatch(self, what: str, thing: Any) -> DamagedError:
        shown = thing if isinstance(thing, str | int | None) else type(thing).__name__
        return DamagedError(f"{self._where}: {what} is not valid: {shown!r}")
