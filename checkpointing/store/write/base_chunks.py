"""Reads the bases that new chunks are going to be relative to, many of them with one request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from checkpointing.errors import DamagedError
from checkpointing.format.chunks import Chunk, Place
from checkpointing.storage import Buffer
from checkpointing.store.read.chunk_decoder import ChunkDecoder
from checkpointing.store.read.chunk_fetcher import ChunkFetcher, room
from checkpointing.store.read.read_batches import chain


class BaseReader:
    """Reads bases for tiles that are written one after the other. Not thread-safe."""

    def __init__(self, fetcher: ChunkFetcher, following: Callable[[], Iterable[Chunk]]) -> None:
        """Create the reader.

        Args:
            following: returns the bases that the next tiles will probably ask for.
        """
        self._fetcher, self._following = fetcher, following
        self._stored: Mapping[Place, Buffer | DamagedError] = {}
        self._decoder = ChunkDecoder(self._stored_bytes, room)

    def read(self, chunk: Chunk, dtype: str, tensor: str) -> Buffer:
        """Return the content of a chunk, checked; valid until the next call for another tile.

        Raises:
            DamagedError: it cannot be read from anywhere.
            StoreError: the store is out of reach.
        """
        if any(at.place not in self._stored for at in chain(chunk)):
            chunks = [chunk, *self._following()]
            self._stored = self._fetcher.borrow(at for one in chunks for at in chain(one))
            self._decoder = ChunkDecoder(self._stored_bytes, room)
        try:
            return self._decoder.content(chunk, dtype)
        except DamagedError:
            return self._fetcher.one(chunk, dtype, tensor)  # reads it again, then a copy

    def _stored_bytes(self, chunk: Chunk) -> Buffer | DamagedError:
        return self._stored[chunk.place]
