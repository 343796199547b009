"""Decodes stored bytes to the content of a chunk, its bases first, and checks it against the
chunk's id, or against the checksum of the stored bytes where these are the content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from checkpointing.codec import Codec, WordLayout, decode
from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.chunks import Chunk, checksum, chunk_id
from checkpointing.format.element_types import element
from checkpointing.format.object_keys import pack_key
from checkpointing.storage import Buffer

# returns the stored bytes of a chunk, or why there are none
Stored: TypeAlias = Callable[[Chunk], Buffer | DamagedError]
# by the id of a chunk, what returns its content: chunks that need not be read
HeldChunks: TypeAlias = Mapping[bytes, Callable[[], Buffer]]


def fresh(depth: int, size: int) -> memoryview:
    """Return newly allocated memory for a chunk."""
    return memoryview(bytearray(size))


class ChunkDecoder:
    """Decodes one chunk after the other, and keeps the bases of the last one, so that consecutive
    chunks with one base cost one decoding of it. Not thread-safe."""

    def __init__(
        self,
        stored: Stored,
        room: Callable[[int, int], memoryview] = fresh,
        held: HeldChunks | None = None,
        *,
        by_checksum: bool = False,
    ) -> None:
        """Create the decoder.

        Args:
            stored: returns stored bytes, which stay valid as long as the decoder is used.
            room: returns memory for the content of a chunk, given the number of its bases and its
                size; may be the same for every chunk with that number of bases.
            held: contents that the caller has. A base among them is neither read nor decoded.
            by_checksum: check content that is stored as it is against the checksum of the stored
                bytes, in a fifth of the time. It detects every damage that the id does, except one
                that was made on purpose.
        """
        self._stored, self._room, self._by_checksum = stored, room, by_checksum
        self._held: HeldChunks = held or {}
        self._path: list[tuple[Chunk, str, Buffer]] = []  # the last chunk, after all its bases

    def content(self, chunk: Chunk, dtype: str) -> Buffer:
        """Return the content of a chunk, checked; valid until the next call if the memory of `room`
        is.

        Raises:
            DamagedError: it is not what was written; names the object.
        """
        raw = self._unchecked(chunk, dtype)
        if not self._is_right(chunk, dtype, raw):
            if chunk.base is not None and chunk.base.id not in self._held:
                self.content(chunk.base, dtype)  # raises if the base is what is damaged
            raise DamagedError(f"{where(chunk)}: the bytes do not match their hash")
        return raw

    def _is_right(self, chunk: Chunk, dtype: str, raw: Buffer) -> bool:
        if self._by_checksum and chunk.codec is Codec.RAW:
            return len(raw) == chunk.raw_length and checksum(raw) == chunk.checksum
        return chunk_id(dtype, raw) == chunk.id

    def _unchecked(self, chunk: Chunk, dtype: str) -> Buffer:
        depth = chunk.depth
        if depth < len(self._path) and self._path[depth][:2] == (chunk, dtype):
            return self._path[depth][2]
        base = None if chunk.base is None else self._base(chunk.base, dtype)
        data = self._stored(chunk)
        if isinstance(data, DamagedError):
            raise data
        del self._path[depth:]  # its memory is about to be overwritten
        raw = data if chunk.codec is Codec.RAW else self._decode(chunk, dtype, data, base)
        self._path.append((chunk, dtype, raw))
        return raw

    def _base(self, chunk: Chunk, dtype: str) -> Buffer:
        held = self._held.get(chunk.id)
        return self._unchecked(chunk, dtype) if held is None else held()

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
    """Return the content of one chunk, in memory of its own or that of `stored`.

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
    """Return a chunk's place, for messages."""
    return f"{pack_key(chunk.pack)} at byte {chunk.offset}"
