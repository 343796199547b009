"""Chunks: the stored form of a box of a tensor, and where it lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import xxhash
from blake3 import blake3

from checkpointing.codec import Codec
from checkpointing.storage.interface import Buffer

Place = tuple[bytes, int]  # a pack, and the offset of a chunk in it

ID_BYTES = 32
PACK_BYTES = 16
MAX_DEPTH = 100  # bases of a chunk, one below the other


def chunk_id(dtype: str, raw: Buffer) -> bytes:
    """BLAKE3-256 of the dtype's name, a zero byte and the raw bytes: independent of the codec."""
    hasher = blake3(dtype.encode() + b"\0")
    hasher.update(raw)
    return hasher.digest()


def checksum(stored: Buffer) -> int:
    """XXH3-64 of stored bytes: for a scrub without decoding. It guards against damage alone; what
    reaches a tensor is checked by its id."""
    return xxhash.xxh3_64_intdigest(stored)


@dataclass(frozen=True)
class Chunk:
    """One stored chunk. Equal ids mean equal content; the rest says where a copy lies."""

    id: bytes  # 32 bytes
    pack: bytes  # 16 bytes, the pack's name
    offset: int  # bytes from the pack's start
    length: int  # bytes as stored
    raw_length: int  # bytes as decoded
    codec: Codec
    checksum: int  # of the stored bytes
    base: Chunk | None = None  # what a DELTA, or ROWS, is relative to

    @property
    def place(self) -> Place:
        """Where its stored bytes are; other copies of it may be stored in other ways."""
        return self.pack, self.offset

    @property
    def depth(self) -> int:
        """Chunks that have to be read besides this one."""
        return 0 if self.base is None else 1 + self.base.depth


def with_bases(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Every chunk that is needed to read these, bases after what needs them."""
    for chunk in chunks:
        at: Chunk | None = chunk
        while at is not None:
            yield at
            at = at.base
