"""The table at a pack's end: read back as it was, and any damage to it noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.errors import DamagedError
from checkpointing.format.chunks import Chunk
from checkpointing.format.packs import MAGIC, ROW, TRAILER, footer, parse_footer, parse_trailer
from tests.unit.checkpointing.format.sample_documents import chunk


def pack_of(lengths: list[int]) -> tuple[bytes, list[Chunk]]:
    """A pack with chunks of these lengths, every second one on a base."""
    chunks, at = [], len(MAGIC)
    for i, length in enumerate(lengths):
        base = chunk(1000 + i) if i % 2 else None
        chunks.append(replace(chunk(i + 1, base=base), offset=at, length=length))
        at += length
    body = b"".join(bytes([i % 256]) * c.length for i, c in enumerate(chunks))
    return MAGIC + body + footer(chunks), chunks


def read(pack: bytes) -> list[tuple[bytes, bytes, int, int, int, int, int]]:
    trailer = pack[-TRAILER.itemsize :]
    start, length = parse_trailer(trailer, len(pack))
    rows = parse_footer(pack[start : start + length], trailer)
    fields = ("offset", "length", "raw_length", "checksum", "codec")
    return [
        (row["id"].tobytes(), row["base"].tobytes(), *(int(row[name]) for name in fields))
        for row in rows
    ]


@given(st.lists(st.integers(0, 50), max_size=20))
def test_a_pack_can_be_understood_alone(lengths: list[int]) -> None:
    pack, chunks = pack_of(lengths)
    assert read(pack) == [
        (
            c.id,
            c.base.id if c.base else bytes(32),
            c.offset,
            c.length,
            c.raw_length,
            c.checksum,
            c.codec,
        )
        for c in chunks
    ]
    assert len(pack) == len(MAGIC) + sum(lengths) + 100 * len(lengths) + 32


def test_every_flipped_bit_of_the_end_is_noticed() -> None:
    pack, _ = pack_of([3, 5])
    ends = len(pack) - 2 * ROW.itemsize - TRAILER.itemsize
    for at in range(ends, len(pack)):
        for bit in range(8):
            damaged = bytearray(pack)
            damaged[at] ^= 1 << bit
            with pytest.raises(DamagedError):
                read(bytes(damaged))


def test_every_truncation_and_anything_appended_is_noticed() -> None:
    pack, _ = pack_of([3, 5])
    for size in range(len(pack)):
        with pytest.raises(DamagedError):
            read(pack[:size])
    for more in (b"x", bytes(32), pack[-32:]):
        with pytest.raises(DamagedError):
            read(pack + more)


@pytest.mark.parametrize(
    ("lengths", "message"), [((3, 7), "gaps or overlaps"), ((3, 5), None), ((9, 5), "gaps")]
)
def test_chunks_lie_end_to_end(lengths: tuple[int, int], message: str | None) -> None:
    """Rows that hash right, but do not say what a writer says."""
    first = replace(chunk(1), offset=len(MAGIC), length=lengths[0])
    second = replace(chunk(2), offset=len(MAGIC) + 3, length=lengths[1])
    shift = 2 if lengths == (3, 7) else 0
    end = footer([first, replace(second, offset=second.offset + shift)])
    start_of_trailer = len(end) - TRAILER.itemsize
    if message is None:
        assert len(parse_footer(end[:start_of_trailer], end[start_of_trailer:])) == 2
    else:
        with pytest.raises(DamagedError, match=message):
            parse_footer(end[:start_of_trailer], end[start_of_trailer:])
