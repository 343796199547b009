"""The chunks of LitData: `index.json` and files of records.

A chunk has the number of its items, their offsets, and the items. An item has the sizes (uint32) of
its leaves and then the bytes of each leaf. Where items are dicts of plain values, newer versions
write no items but a file of Arrow after the offsets, whose rows they are: such chunks are tables.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import DataError, ShardError
from data.index.compressed.compressed_files import Unpack
from data.index.record_files.known_files import Examine
from data.index.record_files.litdata_values import nested_value
from data.index.record_files.record_file import (
    RecordFile,
    byte_strings,
    check_names,
    inside,
    of_offset_table,
    open_each,
    take,
)
from data.source.file import regular_file_version

_NUMPY = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bool"),
)
_TORCH = (
    *("float32", "float32", "float64", "float64", "complex64", "complex64", "complex128"),
    *("complex128", "float16", "float16", "", "uint8", "int8", "int16", "int16", "int32"),
    *("int32", "int64", "int64", "bool", "uint16"),
)
"""The numbers of dtypes in LitData's formats; no numpy dtype is like bfloat16."""
_BYTES = (
    *("bytes", "jpeg", "file", "video", "tifffile", "image", "audio", "pdf", "mesh", "nifti"),
    "tiff",
)
_TEXTS = ("str", "text")
_ARRAYS = {"numpy": _NUMPY, "no_header_numpy": _NUMPY, "tensor": _TORCH, "no_header_tensor": _TORCH}
_NO_SPEC = (ValueError, TypeError, KeyError, IndexError, AttributeError)
_KNOWN = {*_BYTES, *_TEXTS, *_ARRAYS, "int", "float", "bool", "json", "jpeg_array"}
ROWS_END = b"LDARW01\0"
"""How a chunk ends whose items are rows of Arrow, after the length of their file (uint32)."""


@dataclass(frozen=True)
class LitDataDecoder:
    """Reads the leaves of an item: images and files as their bytes, tensors and arrays as numpy's,
    others as their values."""

    names: tuple[str, ...]
    formats: tuple[str, ...]

    def __call__(self, content: bytes) -> dict[str, Any]:
        at = 4 * len(self.names)
        sizes = np.frombuffer(take(content, 0, at), "<u4").tolist()
        found: dict[str, Any] = {}
        for name, form, size in zip(self.names, self.formats, sizes, strict=True):
            value = take(content, at, size)
            try:
                found[name] = _decoded(form, value)
            except (ValueError, IndexError) as error:
                raise ValueError(f"leaf {name!r} is not {form}: {error!r}") from error
            at += size
        if at != len(content):
            raise ValueError(f"its leaves have {at} bytes, the item {len(content)}")
        return found


def is_litdata(index: Any) -> bool:
    """Return whether the content of an `index.json` is one of LitData."""
    is_one = isinstance(index, dict) and isinstance(index.get("config"), dict)
    return is_one and isinstance(index.get("chunks"), list)


def open_litdata(place: Path, index: Any, unpack: Unpack) -> list[RecordFile]:
    """Open the chunks that an `index.json` lists. Raises DataError for leaves that are pickled or
    of an unknown format, for encrypted chunks and those of tokens, and for damaged files."""
    config = index["config"]
    formats = config.get("data_format")
    if not isinstance(formats, list) or not all(isinstance(one, str) for one in formats):
        raise DataError(f"{place}: its data_format is {formats!r}, not a list of formats")
    if config.get("encryption"):
        raise DataError(f"{place}: its chunks are encrypted, which is not supported")
    if (level := config.get("compression_level")) not in (None, "", "chunk"):
        raise DataError(
            f"{place}: its chunks have the compression_level {level!r}, which is not read; write "
            'them with compression_level="chunk", or without compression'
        )
    names = _names(place, config.get("data_spec"), len(formats))
    check_names(names, place)
    for name, form in zip(names, formats, strict=True):
        _check_format(place, name, form)
    decode = LitDataDecoder(tuple(names), tuple(formats))
    layout = json.dumps(["litdata", names, formats])
    chunks, is_packed = index["chunks"], bool(config.get("compression"))

    def open_one(number: int, examine: Examine) -> RecordFile:
        path, count = _described(place, number, chunks[number])
        dim = chunks[number].get("dim")
        if dim is not None:
            raise DataError(
                f"{place}: its chunks are streams of tokens without items, as TokensLoader "
                "reads them: write the tokens as a flat file, which token_files describes"
            )
        if is_packed:
            path = unpack(path, None)  # of its bytes, some versions do not count the table
        found = of_offset_table(examine(path), count, decode, layout)
        if count and not int(found.lengths.max()):
            problem = (
                "its items have no bytes, so they are rows of Arrow as those of the first chunk"
            )
            raise ShardError(path, 0, f"{problem} are not; write the dataset again")
        return found

    return open_each(open_one, len(chunks), place)


def row_chunks(place: Path, index: Any) -> list[tuple[Path, int]] | None:
    """Return the chunks (file, items) that an `index.json` of LitData lists, if the items of the
    first one are rows of Arrow; None if they are records. Raises DataError."""
    chunks = index["chunks"]
    if not chunks or index["config"].get("encryption"):
        return None
    if not _ends_with_rows(_described(place, 0, chunks[0])[0]):
        return None
    return [_described(place, number, chunk) for number, chunk in enumerate(chunks)]


def _ends_with_rows(path: Path) -> bool:
    try:
        regular_file_version(str(path))
        with path.open("rb") as file:
            file.seek(-len(ROWS_END), os.SEEK_END)
            return file.read() == ROWS_END
    except OSError:  # missing or too short, which is reported where it is opened
        return False


def _described(place: Path, number: int, chunk: Any) -> tuple[Path, int]:
    """Return the file of a chunk and the number of its items. Raises DataError."""
    try:
        path, count = inside(place.parent, chunk["filename"], place), int(chunk["chunk_size"])
        chunk.get("dim")
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        problem = f"chunk {number} is not described as LitData does: {error!r}"
        raise DataError(f"{place}: {problem}") from error
    return path, count


def _names(place: Path, spec: Any, count: int) -> list[str]:
    """Return the names of the leaves: keys of a dict, numbers in a list."""
    try:
        parsed = json.loads(spec) if isinstance(spec, str) else None
        tree = parsed[1] if isinstance(parsed, list) else None
        names = _leaves(tree, "") if tree is not None else []
    except (*_NO_SPEC, RecursionError) as error:
        raise DataError(f"{place}: its data_spec cannot be read: {error!r}") from error
    names = [name or "0" for name in names] or [str(number) for number in range(count)]
    if len(names) != count:
        raise DataError(f"{place}: its data_spec has {len(names)} leaves, data_format {count}")
    return names


def _leaves(tree: dict[str, Any], prefix: str) -> list[str]:
    kind, children = tree.get("type"), tree.get("children_spec") or []
    if kind is None:
        return [prefix]
    context = tree.get("context")
    keys = json.loads(context) if isinstance(context, str) else context
    labels = [str(number) for number in range(len(children))]
    if "dict" in str(kind).lower() and isinstance(keys, list):
        labels = [str(key) for key in keys]
    found = []
    for label, child in zip(labels, children, strict=True):
        found += _leaves(child, f"{prefix}.{label}" if prefix else label)
    return found


def _check_format(place: Path, name: str, form: str) -> None:
    kind, _, number = form.partition(":")
    if kind == "pickle":
        raise DataError(
            f"{place}: leaf {name!r} is encoded by pickle, which can run any code when it is read; "
            "write it in another format, such as bytes or numpy"
        )
    no_dtype = kind.startswith("no_header") and not _dtype_name(_ARRAYS.get(kind, ()), number)
    if kind not in _KNOWN or no_dtype:
        raise DataError(
            f"{place}: leaf {name!r} has the format {form!r}; those that are read are "
            f"{', '.join(sorted(_KNOWN))}"
        )


def _dtype_name(dtypes: tuple[str, ...], number: str | int) -> str:
    at = int(number) if str(number).isdecimal() else len(dtypes)
    return dtypes[at] if at < len(dtypes) else ""


def _decoded(form: str, value: bytes) -> Any:
    kind, _, number = form.partition(":")
    if kind in _BYTES:
        return value
    if kind in _TEXTS:
        return value.decode()
    if kind == "json":
        return nested_value(value)
    if kind == "jpeg_array":
        return byte_strings(value)
    if kind in _ARRAYS:
        return _array(_ARRAYS[kind], number, value)
    dtype = {"int": "<i8", "float": "<f8", "bool": "?"}[kind]
    found = np.frombuffer(value, dtype)
    if len(found) != 1:
        raise ValueError(f"it has {len(value)} bytes")
    return found[0].item()


def _array(dtypes: tuple[str, ...], number: str, value: bytes) -> Any:
    """Return an array whose dtype is in the format, or is before the values with the shape."""
    shape, at = [-1], 0
    name = _dtype_name(dtypes, number)
    if not number:
        kind = "<u4"
        if dtypes is _TORCH and max(np.frombuffer(take(value, 0, 8), kind).tolist()) >= 1 << 24:
            kind = ">u4"  # as newer versions write the header of a tensor
        head = np.frombuffer(take(value, 0, 8), kind).tolist()
        name, at = _dtype_name(dtypes, head[0]), 8 + 4 * head[1]
        shape = np.frombuffer(take(value, 8, 4 * head[1]), kind).astype(np.int64).tolist()
    if not name:
        raise ValueError("its dtype is not one that numpy has")
    return np.frombuffer(value[at:], np.dtype(name)).reshape(shape)
