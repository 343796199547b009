"""The shards of MDS, MosaicML Streaming's format: `index.json` and files of records.

A file has the number of its samples, their offsets, and the samples. A sample has the sizes
(uint32) of the columns whose size is not fixed, and then the bytes of each column.
"""

import json
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import DataError
from data.index.compressed.compressed_files import Unpack
from data.index.record_files.known_files import Examine
from data.index.record_files.record_file import (
    RecordFile,
    byte_strings,
    check_names,
    inside,
    of_offset_table,
    open_each,
    take,
)

_BYTES = ("bytes", "jpeg", "png")
_SCALARS = (
    *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)
_TEXTS = {"str_int": int, "str_float": float, "str_decimal": Decimal}
_DTYPES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32"}
_DTYPES |= {33: "int32", 34: "float32", 64: "uint64", 65: "int64", 66: "float64"}
_LISTS = {"jpeg_array": 0, "jpegarray": 0, "list[jpeg]": 4, "list[png]": 4}
"""The bytes before the number of images in a list of them."""
_KNOWN = {*_BYTES, *_SCALARS, *_TEXTS, *_LISTS, "str", "int", "json", "ndarray"}
_COMPRESSIONS = ("gz", "zstd")


@dataclass(frozen=True)
class MdsDecoder:
    """Reads the columns of a sample: images as their bytes, others as their values."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]

    def __call__(self, content: bytes) -> dict[str, Any]:
        at = 0
        sizes: list[int] = []
        for size in self.sizes:
            if size is None:
                size = int.from_bytes(take(content, at, 4), "little")
                at += 4
            sizes.append(size)
        found: dict[str, Any] = {}
        for name, encoding, size in zip(self.names, self.encodings, sizes, strict=True):
            value = take(content, at, size)
            try:
                found[name] = _decoded(encoding, value)
            except (ValueError, KeyError, IndexError, InvalidOperation) as error:
                raise ValueError(f"column {name!r} is not {encoding}: {error!r}") from error
            at += size
        if at != len(content):
            raise ValueError(f"its columns have {at} bytes, the sample {len(content)}")
        return found


def is_mds(index: Any) -> bool:
    """Return whether the content of an `index.json` is one of MDS."""
    shards = index.get("shards") if isinstance(index, dict) else None
    return isinstance(shards, list) and all(isinstance(one, dict) for one in shards)


def open_mds(place: Path, index: Any, unpack: Unpack) -> list[RecordFile]:
    """Open the shards that an `index.json` lists. Raises DataError for other formats, for columns
    that are pickled or of an unknown encoding, and for damaged files."""
    shards = index["shards"]

    def open_one(number: int, examine: Examine) -> RecordFile:
        return _open(place, number, shards[number], unpack, examine)

    return open_each(open_one, len(shards), place)


def _open(
    place: Path, number: int, shard: dict[str, Any], unpack: Unpack, examine: Examine
) -> RecordFile:
    if shard.get("format") != "mds":
        raise DataError(f"{place}: shard {number} is of format {shard.get('format')!r}, not mds")
    try:
        names, encodings = list(shard["column_names"]), list(shard["column_encodings"])
        sizes = [None if size is None else int(size) for size in shard["column_sizes"]]
        count, raw = int(shard["samples"]), shard["raw_data"]
        raw_name, raw_bytes = raw["basename"], int(raw["bytes"])
        packed = dict(shard.get("zip_data") or {})
        if not len(names) == len(encodings) == len(sizes) or count < 0:
            raise ValueError("columns of different numbers")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{place}: shard {number} is not described as of MDS: {error!r}") from error
    check_names(names, place)
    for name, encoding in zip(names, encodings, strict=True):
        _check_encoding(place, name, encoding)
    path = inside(place.parent, raw_name, place)
    if not path.exists() and packed:
        kind = str(shard.get("compression")).partition(":")[0]
        if kind not in _COMPRESSIONS:
            raise DataError(
                f"{place}: shard {number} is compressed by {kind!r}; those that are read "
                f"are {' and '.join(_COMPRESSIONS)}: decompress it to {raw_name}, or write it again"
            )
        path = unpack(inside(place.parent, packed.get("basename"), place), raw_bytes)
    decode = MdsDecoder(tuple(names), tuple(encodings), tuple(sizes))
    layout = json.dumps(["mds", names, encodings, sizes])
    return of_offset_table(examine(path), count, decode, layout)


def _check_encoding(place: Path, name: str, encoding: Any) -> None:
    kind = str(encoding).partition(":")[0]
    if kind in ("pkl", "pickle"):
        raise DataError(
            f"{place}: column {name!r} is encoded by pickle, which can run any code when it is "
            "read; convert it to another encoding, such as json or ndarray"
        )
    if kind not in _KNOWN:
        raise DataError(
            f"{place}: column {name!r} has the encoding {encoding!r}; those that are read are "
            f"{', '.join(sorted(_KNOWN))}"
        )


def _decoded(encoding: str, value: bytes) -> Any:
    kind, _, settings = encoding.partition(":")
    if kind in _BYTES:
        return value
    if kind == "str":
        return value.decode()
    if kind == "int":
        return int.from_bytes(_exactly(value, 8), "little", signed=True)
    if kind == "json":
        return json.loads(value)
    if kind in _LISTS:
        return byte_strings(value, _LISTS[kind])
    if kind == "ndarray":
        return _array(settings, value)
    if kind in _TEXTS:
        return _TEXTS[kind](value.decode())
    dtype = np.dtype(kind).newbyteorder("<")
    return np.frombuffer(_exactly(value, dtype.itemsize), dtype)[0]


def _array(settings: str, value: bytes) -> Any:
    """Return an array whose dtype and shape are in the encoding, or before the values."""
    dtype_name, _, shape_text = settings.partition(":")
    at = 0
    if not dtype_name:
        dtype_name, at = _DTYPES[value[0]], 1
    if shape_text:
        shape = [int(length) for length in shape_text.split(",")]
    else:
        axes, width = value[at] >> 2, 1 << (value[at] & 3)
        numbers = take(value, at + 1, axes * width)
        shape = np.frombuffer(numbers, f"<u{width}").astype(np.int64).tolist()
        at += 1 + axes * width
    if dtype_name not in _DTYPES.values():
        raise ValueError(f"{dtype_name!r} is not a dtype of MDS")
    return np.frombuffer(value[at:], np.dtype(dtype_name).newbyteorder("<")).reshape(shape)


def _exactly(value: bytes, size: int) -> bytes:
    if len(value) != size:
        raise ValueError(f"it has {len(value)} bytes, {size} are expected")
    return value
