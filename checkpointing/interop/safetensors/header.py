"""Builds the header of a safetensors file, and parses it without trusting its content.

u64    length of the header
...    JSON: name -> {"dtype", "shape", "data_offsets": [start, end] from the header's end}, and
       "__metadata__": texts by name
...    the tensors' bytes, row-major, without gaps
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.canonical_json import JsonReader
from checkpointing.format.element_types import element
from checkpointing.format.tiles import Shape
from checkpointing.interop.atomic_files import InputFile

METADATA = "__metadata__"
PREFIX = 8
MAX_HEADER = 100_000_000  # bytes; the format's own limit
_MAX_DIMS = 64  # numpy's limit

_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
}
_DTYPES = {theirs: ours for ours, theirs in _NAMES.items()}


@dataclass(frozen=True)
class SafetensorsEntry:
    """One tensor of a file."""

    dtype: str  # torch's name
    shape: Shape
    start: int  # bytes from the header's end

    @property
    def size(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * element(self.dtype).itemsize


def build(entries: Mapping[str, SafetensorsEntry], metadata: Mapping[str, str]) -> bytes:
    """Returns the length and the header; the bytes of the tensors begin after it, at a multiple of
    8.

    Raises:
        FormatError: a dtype is not in the format, or there are too many tensors for one file.
    """
    body: dict[str, Any] = {METADATA: dict(metadata)}
    for name, entry in entries.items():
        if name == METADATA:
            raise FormatError(f"safetensors cannot have a tensor named {METADATA!r}: rename it")
        body[name] = {
            "dtype": _name_of(name, entry),
            "shape": _shape_there(entry),
            "data_offsets": [entry.start, entry.start + entry.size],
        }
    text = json.dumps(body, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise FormatError(
            f"{len(entries)} tensors need a header of {len(text)} bytes, and safetensors allows "
            f"{MAX_HEADER}: export with smaller shards"
        )
    return len(text).to_bytes(PREFIX, "little") + text


def _name_of(name: str, entry: SafetensorsEntry) -> str:
    known = _NAMES.get(entry.dtype)
    if known is None or (known == "F4" and not entry.shape):
        raise FormatError(
            f"safetensors has no dtype for {name!r}, {entry.dtype}{list(entry.shape)}: leave its "
            "item out, or export to torch or DCP"
        )
    return known


def _shape_there(entry: SafetensorsEntry) -> list[int]:
    """Returns the shape in safetensors, which counts 4-bit elements where torch counts pairs of
    them."""
    if _NAMES[entry.dtype] == "F4":
        return [*entry.shape[:-1], 2 * entry.shape[-1]]
    return list(entry.shape)


def read(file: InputFile) -> tuple[dict[str, SafetensorsEntry], int]:
    """Returns the tensors of a file by name, and where their bytes begin.

    Raises:
        DamagedError: it is not a whole safetensors file.
        FormatError: a dtype is unknown to this version.
    """
    length = int.from_bytes(file.read(0, PREFIX), "little")
    if not 2 <= length <= min(MAX_HEADER, file.size - PREFIX):
        raise DamagedError(
            f"{file.path}: states a header of {length} bytes in a file of {file.size}: it is cut "
            "off, or not a safetensors file"
        )
    body = _parse(bytes(file.read(PREFIX, length)), str(file.path))
    texts = body.pop(METADATA, {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise DamagedError(f"{file.path}: its {METADATA} is not an object of texts")
    where = f"{file.path}"
    entries = {name: _entry(name, item, where) for name, item in body.items()}
    _check_places(entries, file.size - PREFIX - length, where)
    return entries, PREFIX + length


def _parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        body = json.loads(data.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{where}: its header is not JSON ({error})") from error
    if not isinstance(body, dict):
        raise DamagedError(f"{where}: its header is not a JSON object")
    return body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    for name in found:
        name.encode()  # a lone surrogate raises UnicodeEncodeError, which is a ValueError
    return found


def _entry(name: str, item: object, where: str) -> SafetensorsEntry:
    read_item = JsonReader(item, f"{where}: tensor {name!r}")
    kind, shape = read_item.text("dtype"), read_item.counts("shape")
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise FormatError(
            f"{where}: tensor {name!r} has dtype {kind!r}, which is not supported here; supported "
            f"are {', '.join(sorted(_DTYPES))}"
        )
    if kind == "F4":
        if not shape or shape[-1] % 2:
            raise FormatError(
                f"{where}: tensor {name!r}: {list(shape)} of F4 is not a whole number of bytes"
            )
        shape = (*shape[:-1], shape[-1] // 2)
    if len(shape) > _MAX_DIMS or math.prod(max(side, 1) for side in shape) >= 1 << 60:
        raise DamagedError(f"{where}: tensor {name!r} has an impossible shape {list(shape)[:9]}")
    offsets = read_item.counts("data_offsets")
    entry = SafetensorsEntry(dtype, shape, offsets[0] if offsets else 0)
    if len(offsets) != 2 or offsets[1] - offsets[0] != entry.size:
        raise DamagedError(
            f"{where}: tensor {name!r}, {kind}{list(shape)} of {entry.size} bytes, is stored at "
            f"bytes {list(offsets)}"
        )
    return entry


def _check_places(entries: Mapping[str, SafetensorsEntry], size: int, where: str) -> None:
    """Check that there are no gaps and no overlaps, and nothing after the last tensor."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda e: (e[1].start, e[1].size)):
        if entry.start != end:
            raise DamagedError(
                f"{where}: tensor {name!r} begins at byte {entry.start} instead of {end}"
            )
        end += entry.size
    if end != size:
        raise DamagedError(
            f"{where}: has {size} bytes of tensors instead of {end}: it is cut off or incomplete"
        )
