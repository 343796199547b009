"""The record of a chunk, which is the stored form of a box of a tensor, and its position in a
pack. `tiles` decides how large boxes are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import xxhash
from blake3 import blake3

from checkpointing.codec import Codec
from checkpointing.storage.interface import Buffer

Place = tuple[bytes, int]  # name of a pack, and the offset of a chunk in it

ID_BYTES = 32
PACK_BYTES = 16
MAX_DEPTH = 100  # longest chain of bases of a chunk


def chunk_id(dtype: str, raw: Buffer) -> bytes:
    """Returns the BLAKE3-256 of the dtype's name, a zero byte and the raw bytes, which is
    independent of the codec."""
    hasher = blake3(dtype.encode() + b"\0")
    hasher.update(raw)
    return hasher.digest()


def checksum(stored: Buffer) -> int:
    """Returns the XXH3-64 of stored bytes, for an integrity check without decoding. It detects
    accidental damage only. It suffices for content that is stored raw and read into a tensor; what
    was decoded is checked by the chunk id."""
    return xxhash.xxh3_64_intdigest(stored)


@dataclass(frozen=True)
class Chunk:
    """One stored chunk. Equal ids mean equal content; the other fields describe one stored copy."""

    id: bytes  # 32 bytes
    pack: bytes  # 16 bytes, the pack's name
    offset: int  # bytes from the pack's start
    length: int  # bytes as stored
    raw_length: int  # bytes as decoded
    codec: Codec
    checksum: int  # of the stored bytes
    base: Chunk | None = None  # the base of a DELTA, GROUPS or ROWS chunk

    @property
    def place(self) -> Place:
        """The position of its stored bytes; another copy of the chunk may be encoded
        differently."""
        return self.pack, self.offset

    @property
    def depth(self) -> int:
        """The number of chunks that have to be read besides this one."""
        return 0 if self.base is None else 1 + self.base.depth


def with_bases(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yields every chunk that is needed to read these, bases after the chunks that need them."""
    for chunk in chunks:
        at: Chunk | None = chunk
        while at is not None:
            yield at
            at = at.base
