"""From stored bytes to a chunk's content: decoded, its bases first, and checked against its id."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from checkpointing.codec import Codec, WordLayout, decode
from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.chunks import Chunk, checksum, chunk_id
from checkpointing.format.element_types import element
from checkpointing.format.object_keys import pack_key
from checkpointing.storage import Buffer

Stored: TypeAlias = Callable[[Chunk], Buffer | DamagedError]  # its stored bytes, or why not


def fresh(depth: int, size: int) -> memoryview:
    """Memory of a chunk's own."""
    return memoryview(bytearray(size))


class ChunkDecoder:
    """Decodes one chunk after the other, and keeps what the last one was relative to: chunks of one
    base, one after the other, cost one decoding of it. For one thread."""

    def __init__(self, stored: Stored, room: Callable[[int, int], memoryview] = fresh) -> None:
        """
        Args:
            stored: gives stored bytes, as long as the decoder is used.
            room: gives memory for the content of a chunk, by how many bases it has, and its size;
                may be the same for every chunk with so many bases.
        """
        self._stored, self._room = stored, room
        self._path: list[tuple[Chunk, str, Buffer]] = []  # the last chunk, after all its bases

    def content(self, chunk: Chunk, dtype: str) -> Buffer:
        """The content of a chunk, checked; valid until the next call if `room` is.

        Raises:
            DamagedError: it is not what was written; names the object.
        """
        raw = self._unchecked(chunk, dtype)
        if chunk_id(dtype, raw) != chunk.id:
            if chunk.base is not None:
                self.content(chunk.base, dtype)  # raises if it is the base that is damaged
            raise DamagedError(f"{where(chunk)}: the bytes do not match their hash")
        return raw

    def _unchecked(self, chunk: Chunk, dtype: str) -> Buffer:
        depth = chunk.depth
        if depth < len(self._path) and self._path[depth][:2] == (chunk, dtype):
            return self._path[depth][2]
        base = None if chunk.base is None else self._unchecked(chunk.base, dtype)
        data = self._stored(chunk)
        if isinstance(data, DamagedError):
            raise data
        del self._path[depth:]  # what is there is about to be overwritten
        raw = data if chunk.codec is Codec.RAW else self._decode(chunk, dtype, data, base)
        self._path.append((chunk, dtype, raw))
        return raw

    def _decode(self, chunk: Chunk, dtype: str, data: Buffer, base: Buffer | None) -> Buffer:
        kind = element(dtype)
        layout = WordLayout(kind.word, kind.is_float, kind.itemsize)
        out = self._room(chunk.depth, chunk.raw_length)
        try:
            decode(chunk.codec, data, out, layout, base)
        except (DamagedError, FormatError) as error:
            raise type(error)(f"{where(chunk)}: {error}") from error
        return out


def content(chunk: Chunk, dtype: str, stored: Stored) -> Buffer:
    """The content of one chunk, in memory of its own or that of `stored`.

    Raises:
        DamagedError: it is not what was written; names the object.
    """
    return ChunkDecoder(stored).content(chunk, dtype)


def check_stored(chunk: Chunk, data: Buffer) -> None:
    """Check stored bytes without decoding them.

    Raises:
        DamagedError: they do not match their checksum.
    """
    if checksum(data) != chunk.checksum:
        raise DamagedError(f"{where(chunk)}: the stored bytes do not match their checksum")


def where(chunk: Chunk) -> str:
    """A chunk's place, for messages."""
    return f"{pack_key(chunk.pack)} at byte {chunk.offset}"
