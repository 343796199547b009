"""Codec ROWS: stores only the rows that differ from those of a base chunk, or from zeros.

It suits embeddings and their moments, of which a step changes a few rows. With `r` rows in the
chunk and `k` rows stored, all numbers little-endian:

    0    u8   1 if the other rows are those of the base chunk, 0 if they are zeros
    1    3    zeros
    4    u32  bytes per row
    8    u32  k
    12   ...  if 0 < k < r: ceil(r / 8) bytes of bits, row i being bit i % 8, from the lowest, of
              byte i // 8; set if the row is stored. Bits past the last row are 0. Else nothing
    ...  ...  the stored rows end to end as the body described in byte_planes.py, change 0 or 1

No rows at all are an empty blob.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from checkpointing.codec.algorithms.byte_planes import decode_body, encode_body
from checkpointing.codec.algorithms.word_transforms import WordSeries, WordTransform, as_words
from checkpointing.codec.word_layout import WordLayout
from checkpointing.errors import DamagedError
from checkpointing.storage.interface import Buffer

_HEAD = struct.Struct("<B3xII")


def encode_rows(raw: Buffer, layout: WordLayout, base: Buffer | None) -> Buffer:
    """Returns the blob described above, larger than `raw` by at most 256 bytes plus a
    ten-thousandth.

    Raises:
        ValueError: `raw` is not a whole number of rows.
    """
    if len(raw) % layout.row:
        raise ValueError(f"{len(raw)} bytes are not a whole number of rows of {layout.row} bytes")
    if not len(raw):
        return b""
    rows = _rows(raw, layout)
    kept = _differing(rows, None if base is None else _rows(base, layout))
    bits = np.packbits(kept, bitorder="little").tobytes()
    count = int(np.count_nonzero(kept))
    if len(bits) + count * layout.row >= len(raw):
        kept[:] = True
        count = len(rows)
    if count in (0, len(rows)):
        bits = b""
    words = rows.reshape(-1) if count == len(rows) else rows[kept].reshape(-1)
    change = WordTransform.ROTATED if layout.is_float else WordTransform.PLAIN
    body = encode_body(WordSeries(words, change))
    return b"".join([_HEAD.pack(base is not None, layout.row, count), bits, body])


def decode_rows(stored: Buffer, out: memoryview, layout: WordLayout, base: Buffer | None) -> None:
    """Fill `out` from a blob.

    Raises:
        DamagedError: the blob does not hold this number of rows, or `base` does not fit.
    """
    if not len(out) and not len(stored):
        return
    row, count = _parse_head(stored, len(out), layout.word, base is not None)
    layout = replace(layout, row=row)
    rows = _rows(out, layout)
    at = _HEAD.size
    kept = np.ones(len(rows), np.bool_) if count else np.zeros(len(rows), np.bool_)
    if 0 < count < len(rows):
        at += -(-len(rows) // 8)
        kept = _parse_bits(stored[_HEAD.size : at], len(rows), count)
    body = memoryview(stored)[at:]
    if count == len(rows):
        decode_body(body, rows.reshape(-1))
        return
    words = np.empty((count, rows.shape[1]), rows.dtype)
    decode_body(body, words.reshape(-1))
    rows[:] = 0 if base is None else _rows(base, layout)
    rows[kept] = words


def _rows(data: Buffer, layout: WordLayout) -> NDArray[np.unsignedinteger]:
    return as_words(data, layout.word).reshape(-1, layout.row // layout.word)


def _differing(
    rows: NDArray[np.unsignedinteger], base: NDArray[np.unsignedinteger] | None
) -> NDArray[np.bool_]:
    differing: NDArray[np.bool_] = (rows != (0 if base is None else base)).any(axis=1)
    return differing


def _parse_head(stored: Buffer, size: int, word: int, has_base: bool) -> tuple[int, int]:
    """Returns the bytes per row, and the number of stored rows. The row size is read from the blob,
    not derived from the chunk's shape, because chunks of other shapes may refer to it."""
    if len(stored) < _HEAD.size:
        raise DamagedError(f"{len(stored)} bytes are too few for the head of sparse rows")
    head = bytes(stored[: _HEAD.size])
    relative, row, count = _HEAD.unpack(head)
    if head[0] > 1 or any(head[1:4]) or not row or row % word or size % row or count > size // row:
        raise DamagedError(f"{head.hex()} is not a head of sparse rows of {size} bytes")
    if bool(relative) != has_base:
        raise DamagedError("sparse rows do not fit the base of the chunk")
    return int(row), int(count)


def _parse_bits(bits: Buffer, rows: int, count: int) -> NDArray[np.bool_]:
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    if len(flags) < rows or flags[rows:].any() or np.count_nonzero(flags) != count:
        raise DamagedError(f"the bits of sparse rows do not mark {count} of {rows}")
    return flags[:rows].astype(np.bool_)
