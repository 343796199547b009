"""The header of the file format of `column_container`, which is read without numpy.

Layout, little-endian: magic (8 bytes), version u32, header length u32, header (JSON), zeros to a
multiple of 8, then each column on a multiple of 8, and the BLAKE3 (32 bytes) of all before it. The
header is {"kind": str, "meta": {...}, "columns": [[name, dtype, length], ...]}. The columns follow
in its order without gaps, so the file has exactly one possible size, and no offset can be wrong.
"""

import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from blake3 import blake3

from data.errors import IndexFileError

MAGIC = b"\x89HPKIDX\n"  # a text-mode transfer would change the last byte, a 7-bit one the first
VERSION = 1
DIGEST = 32  # bytes of the trailer
MOST_HEADER = 1 << 20  # bytes
HEAD = struct.Struct("<8sII")
"""Magic, version, length of the header."""
ITEM_BYTES = {"u1": 1, "u2": 2, "u4": 4, "u8": 8, "i8": 8}
"""The types that a column may have, as numpy calls them, and the bytes of one number."""

Buffer: TypeAlias = bytes | mmap.mmap


class StoredColumn(NamedTuple):
    """Where a column is in a container."""

    name: str
    dtype: str
    """A key of `ITEM_BYTES`."""
    length: int
    """How many numbers it has."""
    start: int
    """The offset of the first one in the file, in bytes."""


@dataclass(frozen=True)
class ContainerHeader:
    """The header of a container, of which each column lies inside the file."""

    meta: Mapping[str, Any]
    columns: list[StoredColumn]


def check_digest(content: Buffer, place: Path | str) -> None:
    """Raise IndexFileError, naming `place`, if the hash at the end of a container is of other
    bytes."""
    if blake3(memoryview(content)[:-DIGEST]).digest() != content[-DIGEST:]:
        raise IndexFileError(place, "damaged (its hash does not match); rebuild it")


def parse_header(content: Buffer, kind: str, place: Path | str) -> ContainerHeader:
    """Read the header of a container of `kind`, whose hash was compared. Raises IndexFileError,
    naming `place`."""
    header, start = _header(content, place)
    if header.get("kind") != kind:
        raise IndexFileError(place, f"is of kind {header.get('kind')!r}, expected {kind!r}")
    listed = list(_columns(header, start, place))
    if len({one.name for one in listed}) != len(listed):
        raise IndexFileError(place, "lists a column twice")
    end = len(content) - DIGEST
    for one in listed:
        start = one.start + one.length * ITEM_BYTES[one.dtype]
        if start > end:
            raise IndexFileError(place, f"column {one.name!r} does not fit in the file")
        start += -start % 8
    if start != end:
        raise IndexFileError(place, f"has {end - start} bytes after its columns")
    return ContainerHeader(_meta(header, place), listed)


def _columns(header: dict[str, Any], start: int, place: Path | str) -> Iterator[StoredColumn]:
    """Yield the columns that the header lists, the first of which is at `start`."""
    columns = header.get("columns")
    for item in columns if isinstance(columns, list) else [columns]:
        match item:
            case [str(name), str(dtype), int(length)] if (
                dtype in ITEM_BYTES and length >= 0 and type(length) is int
            ):
                yield StoredColumn(name, dtype, length, start)
                size = length * ITEM_BYTES[dtype]
                start += size + -size % 8
            case _:
                raise IndexFileError(place, f"{item!r:.100} is not a column")


def _header(content: Buffer, place: Path | str) -> tuple[dict[str, Any], int]:
    """Return the header and the offset of the first column."""
    if len(content) < HEAD.size + DIGEST:
        raise IndexFileError(place, f"has {len(content)} bytes: cut short; rebuild it")
    magic, version, length = HEAD.unpack_from(content)
    if magic != MAGIC:
        raise IndexFileError(place, "is not an index")
    if version != VERSION:
        problem = f"is of version {version}, but this hpckit reads {VERSION}: rebuild it"
        raise IndexFileError(place, problem)
    end = HEAD.size + length
    if length > MOST_HEADER or end > len(content) - DIGEST:
        raise IndexFileError(place, f"a header of {length} bytes does not fit")
    try:
        header = json.loads(content[HEAD.size : end])
    except (ValueError, RecursionError) as error:
        raise IndexFileError(place, f"its header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise IndexFileError(place, "its header is not a JSON object")
    return header, end + -end % 8


def _meta(header: dict[str, Any], place: Path | str) -> dict[str, Any]:
    meta = header.get("meta")
    if not isinstance(meta, dict):
        raise IndexFileError(place, "its header has no facts")
    return meta
