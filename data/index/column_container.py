"""The file format of sidecars and manifests: named columns of numbers in one file.

Layout, little-endian: magic (8 bytes), version u32, header length u32, header (JSON), zeros to a
multiple of 8, then each column on a multiple of 8, and the BLAKE3 (32 bytes) of all before it. The
header is {"kind": str, "meta": {...}, "columns": [[name, dtype, length], ...]}. The columns follow
in its order without gaps, so the file has exactly one possible size, and no offset can be wrong.
"""

import json
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from data.errors import IndexFileError

MAGIC = b"\x89HPKIDX\n"  # a text-mode transfer would change the last byte, a 7-bit one the first
VERSION = 1
DIGEST = 32  # bytes of the trailer
MOST_HEADER = 1 << 20  # bytes
_CHUNK = 1 << 20
_HEAD = struct.Struct("<8sII")
_DTYPES = {name: np.dtype(f"<{name}") for name in ("u1", "u2", "u4", "u8", "i8")}

Column: TypeAlias = npt.NDArray[Any]
Buffer: TypeAlias = bytes | mmap.mmap


@dataclass(frozen=True)
class IndexColumns:
    """The content of a container: its kind, its metadata, and its read-only columns of shape
    (n,)."""

    kind: str
    meta: Mapping[str, Any]
    columns: Mapping[str, Column]
    mapped: mmap.mmap | None = None
    """The mapped file that the columns are views of; None if they are in memory."""

    def __reduce__(self) -> tuple[type["IndexColumns"], tuple[Any, ...]]:
        """Pickle with copies of the columns, as a mapping cannot be sent to another process."""
        return IndexColumns, (self.kind, self.meta, self.columns)

    def release(self) -> None:
        """Release the mapped pages that were read so far from the memory of this process; they stay
        in the kernel's page cache."""
        if self.mapped is not None:
            self.mapped.madvise(mmap.MADV_DONTNEED)


def pack(kind: str, meta: Mapping[str, Any], columns: Mapping[str, Column]) -> bytes:
    """Return a container as bytes. Columns are one-dimensional, of u1, u2, u4, u8 or i8."""
    listed = [[name, _dtype_name(column), len(column)] for name, column in columns.items()]
    header = json.dumps({"kind": kind, "meta": dict(meta), "columns": listed}).encode()
    if len(header) > MOST_HEADER:
        raise ValueError(f"a header of {len(header)} bytes; at most {MOST_HEADER} are allowed")
    parts = [_HEAD.pack(MAGIC, VERSION, len(header)), header, _padding(_HEAD.size + len(header))]
    for column in columns.values():
        stored = np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<"))
        parts += [stored.tobytes(), _padding(stored.nbytes)]
    digest = blake3()
    for part in parts:
        digest.update(part)
    return b"".join([*parts, digest.digest()])


def unpack(content: Buffer, kind: str, place: Path | str, *, checked: bool = False) -> IndexColumns:
    """Read a container of `kind`; the columns are views of `content`, nothing is copied.

    `checked`: the hash at its end was compared already. Raises IndexFileError, naming `place`.
    """
    if not checked and blake3(memoryview(content)[:-DIGEST]).digest() != content[-DIGEST:]:
        raise IndexFileError(place, "damaged (its hash does not match); rebuild it")
    header, start = _header(content, place)
    if header.get("kind") != kind:
        raise IndexFileError(place, f"is of kind {header.get('kind')!r}, expected {kind!r}")
    columns: dict[str, Column] = {}
    end = len(content) - DIGEST
    for name, dtype, length in _listed(header, place):
        size = length * dtype.itemsize
        if start + size > end:
            raise IndexFileError(place, f"column {name!r} does not fit in the file")
        columns[name] = np.frombuffer(content, dtype, length, start)
        columns[name].flags.writeable = False
        start += size + -size % 8
    if start != end:
        raise IndexFileError(place, f"has {end - start} bytes after its columns")
    mapped = content if isinstance(content, mmap.mmap) else None
    return IndexColumns(kind, _meta(header, place), columns, mapped)


def load(path: Path, kind: str) -> IndexColumns:
    """Read the container at `path` into memory. Raises IndexFileError, OSError."""
    return unpack(path.read_bytes(), kind, path)


def load_mapped(path: Path, kind: str) -> IndexColumns:
    """Read the container as `load` does, but map its columns: only the parts that are used take
    memory.

    The hash is compared by reading, so that the file is not mapped into memory as a whole. The file
    must not be changed in place: writers replace it by rename.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _HEAD.size + DIGEST:
            raise IndexFileError(path, f"has {size} bytes: cut short; rebuild it")
        digest, left = blake3(), size - DIGEST
        chunk = memoryview(bytearray(_CHUNK))
        while left:
            count = file.readinto(chunk[: min(left, _CHUNK)])
            if not count:
                raise IndexFileError(path, "was cut short while it was being read; rebuild it")
            digest.update(chunk[:count])
            left -= count
        if file.read(DIGEST) != digest.digest():
            raise IndexFileError(path, "damaged (its hash does not match); rebuild it")
        content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    return unpack(content, kind, path, checked=True)


def narrow(values: npt.ArrayLike) -> Column:
    """Return the values, none of them negative, in the smallest unsigned dtype that holds them
    all."""
    wide = np.asarray(values, dtype=np.uint64)
    most = int(wide.max()) if wide.size else 0
    for bits in (8, 16, 32):
        if most < 1 << bits:
            return wide.astype(f"<u{bits // 8}")
    return wide


def _padding(size: int) -> bytes:
    return bytes(-size % 8)


def _dtype_name(column: Column) -> str:
    name = column.dtype.str[1:]
    if name not in _DTYPES or column.ndim != 1:
        raise TypeError(f"unsupported column: {column.dtype} of shape {column.shape}")
    return name


def _header(content: Buffer, place: Path | str) -> tuple[dict[str, Any], int]:
    """Return the header and the offset of the first column."""
    if len(content) < _HEAD.size + DIGEST:
        raise IndexFileError(place, f"has {len(content)} bytes: cut short; rebuild it")
    magic, version, length = _HEAD.unpack_from(content)
    if magic != MAGIC:
        raise IndexFileError(place, "is not an index")
    if version != VERSION:
        problem = f"is of version {version}, but this hpckit reads {VERSION}: rebuild it"
        raise IndexFileError(place, problem)
    end = _HEAD.size + length
    if length > MOST_HEADER or end > len(content) - DIGEST:
        raise IndexFileError(place, f"a header of {length} bytes does not fit")
    try:
        header = json.loads(content[_HEAD.size : end])
    except (ValueError, RecursionError) as error:
        raise IndexFileError(place, f"its header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise IndexFileError(place, "its header is not a JSON object")
    return header, end + -end % 8


def _listed(header: dict[str, Any], place: Path | str) -> list[tuple[str, np.dtype[Any], int]]:
    listed: list[tuple[str, np.dtype[Any], int]] = []
    columns = header.get("columns")
    for item in columns if isinstance(columns, list) else [columns]:
        match item:
            case [str(name), str(dtype), int(length)] if (
                dtype in _DTYPES and length >= 0 and type(length) is int
            ):
                listed.append((name, _DTYPES[dtype], length))
            case _:
                raise IndexFileError(place, f"{item!r:.100} is not a column")
    if len({name for name, *_ in listed}) != len(listed):
        raise IndexFileError(place, "lists a column twice")
    return listed


def _meta(header: dict[str, Any], place: Path | str) -> dict[str, Any]:
    meta = header.get("meta")
    if not isinstance(meta, dict):
        raise IndexFileError(place, "its header has no facts")
    return meta
