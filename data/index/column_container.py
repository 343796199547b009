"""The file format of sidecars and manifests: named columns of numbers in one file.

`container_header` has the layout, and reads where the columns are; here they become arrays.
"""

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from data.errors import IndexFileError
from data.index.container_header import (
    DIGEST,
    HEAD,
    ITEM_BYTES,
    MOST_HEADER,
    VERSION,
    Buffer,
    check_digest,
    parse_header,
)
from data.index.container_header import MAGIC as MAGIC

_CHUNK = 1 << 20
_DTYPES = {name: np.dtype(f"<{name}") for name in ITEM_BYTES}

Column: TypeAlias = npt.NDArray[Any]


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
    parts = [HEAD.pack(MAGIC, VERSION, len(header)), header, _padding(HEAD.size + len(header))]
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
    if not checked:
        check_digest(content, place)
    header = parse_header(content, kind, place)
    columns: dict[str, Column] = {}
    for one in header.columns:
        columns[one.name] = np.frombuffer(content, _DTYPES[one.dtype], one.length, one.start)
        columns[one.name].flags.writeable = False
    mapped = content if isinstance(content, mmap.mmap) else None
    return IndexColumns(kind, header.meta, columns, mapped)


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
        if size < HEAD.size + DIGEST:
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
