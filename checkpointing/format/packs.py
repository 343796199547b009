"""Reads and writes packs: chunks end to end, then a table of them, so that a pack describes itself.

8 bytes   magic "HPKPACK1"
...       stored chunks, end to end, no gaps
n x 100   footer: one ROW per chunk, in the order of their offsets
32 bytes  trailer: checksum of the footer (u64), rows (u64), size of the pack (u64), magic
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import DamagedError
from checkpointing.format.chunks import ID_BYTES, Chunk, checksum
from checkpointing.storage.interface import Buffer

MAGIC = b"HPKPACK1"
_NO_BASE = bytes(ID_BYTES)

ROW = np.dtype(
    [
        ("id", "u1", ID_BYTES),
        ("base", "u1", ID_BYTES),  # zeros: no base
        ("offset", "<u8"),
        ("length", "<u8"),
        ("raw_length", "<u8"),
        ("checksum", "<u8"),
        ("codec", "u1"),
        ("reserved", "u1", 3),  # zeros
    ]
)
TRAILER = np.dtype([("checksum", "<u8"), ("rows", "<u8"), ("size", "<u8"), ("magic", "u1", 8)])

_NUMBERS = ("offset", "length", "raw_length", "checksum", "codec")
_numbers = attrgetter(*_NUMBERS)

Rows = NDArray[np.void]


def footer(chunks: Sequence[Chunk]) -> bytes:
    """Returns footer and trailer of a pack that holds `chunks`, in the order of their offsets."""
    rows = np.zeros(len(chunks), ROW)
    if chunks:
        rows["id"] = _as_ids([chunk.id for chunk in chunks])
        rows["base"] = _as_ids([c.base.id if c.base else _NO_BASE for c in chunks])
        for name, column in zip(_NUMBERS, zip(*map(_numbers, chunks), strict=True), strict=True):
            rows[name] = np.array(column, ROW[name])
    table = rows.tobytes()
    data_end = chunks[-1].offset + chunks[-1].length if chunks else len(MAGIC)
    trailer = np.zeros(1, TRAILER)
    trailer["checksum"], trailer["rows"] = checksum(table), len(rows)
    trailer["size"] = data_end + len(table) + TRAILER.itemsize
    trailer["magic"] = _as_uint8(MAGIC)
    return table + trailer.tobytes()


def parse_trailer(data: Buffer, size: int) -> tuple[int, int]:
    """Returns where the footer starts, and its length, from the last 32 bytes of a pack of `size`
    bytes.

    Raises:
        DamagedError: this is not a whole pack.
    """
    if len(data) != TRAILER.itemsize:
        raise DamagedError(f"{size} bytes are too few for a pack")
    trailer = np.frombuffer(data, TRAILER)[0]
    if trailer["magic"].tobytes() != MAGIC:
        raise DamagedError("its last bytes are not those of a pack")
    length = int(trailer["rows"]) * ROW.itemsize
    start = size - TRAILER.itemsize - length
    if int(trailer["size"]) != size or start < len(MAGIC):
        raise DamagedError(f"it has {size} bytes instead of {int(trailer['size'])}")
    return start, length


def parse_footer(table: Buffer, trailer: Buffer) -> Rows:
    """Returns the table of a pack's chunks.

    Raises:
        DamagedError: it does not match its checksum, or is inconsistent.
    """
    if checksum(table) != int(np.frombuffer(trailer, TRAILER)[0]["checksum"]):
        raise DamagedError("the table at its end does not match its checksum")
    rows = np.frombuffer(table, ROW)
    end = int(np.frombuffer(trailer, TRAILER)[0]["size"]) - TRAILER.itemsize - len(table)
    if len(rows) and max(int(rows[name].max()) for name in ("offset", "length")) > end:
        raise DamagedError("the table at its end has chunks outside of the pack")
    first = np.array([len(MAGIC)], np.uint64)
    ends = np.concatenate([first, rows["offset"] + rows["length"]])
    if not np.array_equal(ends[:-1], rows["offset"]) or int(ends[-1]) != end:
        raise DamagedError("the table at its end has gaps or overlaps")
    return rows


def _as_ids(ids: Sequence[bytes]) -> NDArray[np.uint8]:
    return _as_uint8(b"".join(ids)).reshape(-1, ID_BYTES)


def _as_uint8(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)
