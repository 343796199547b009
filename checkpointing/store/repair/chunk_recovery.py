"""Recovers the content of a chunk from whatever copies of it and of its bases are left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from checkpointing.codec import Codec
from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.chunks import Chunk
from checkpointing.format.object_keys import pack_key
from checkpointing.storage import Buffer, Storage
from checkpointing.store.read.chunk_copies import StoreCopies
from checkpointing.store.read.chunk_decoder import content
from checkpointing.store.store import Store


class ChunkRecovery:
    """Looks for a chunk in one store, and then in all copies that it and other stores have.

    A copy of a chunk may be relative to a base that is damaged where it lies; then copies of the
    base are looked for, too.
    """

    def __init__(self, store: Store, others: Sequence[Store]) -> None:
        self._storage = store.storage
        self._copies = StoreCopies([store, *others])

    def recover(self, chunk: Chunk, dtype: str) -> tuple[bytes, str] | None:
        """Return the verified content, and where it was found; None if it is lost."""
        for storage, place in self._places(chunk):
            try:
                raw = self._content(storage, place, dtype)
            except (DamagedError, FormatError):
                continue
            return bytes(raw), f"{storage.url}/{pack_key(place.pack)}"
        return None

    def _places(self, chunk: Chunk) -> Iterable[tuple[Storage, Chunk]]:
        yield self._storage, chunk
        yield from self._copies.find(chunk.id)

    def _content(self, storage: Storage, place: Chunk, dtype: str) -> Buffer:
        if place.base is None:
            return content(place, dtype, lambda chunk: _stored(storage, chunk))
        found = self.recover(place.base, dtype)
        if found is None:
            raise DamagedError(f"the base of {place.id.hex()} is lost")
        # The base as if it were stored without encoding.
        plain = replace(place.base, codec=Codec.RAW, base=None)
        return content(
            replace(place, base=plain),
            dtype,
            lambda chunk: found[0] if chunk is plain else _stored(storage, chunk),
        )


def _stored(storage: Storage, chunk: Chunk) -> Buffer:
    try:
        return storage.get_range(pack_key(chunk.pack), chunk.offset, chunk.length)
    except FileNotFoundError as error:
        raise DamagedError(str(error)) from error
