"""Makes a checkpoint independent of bases, so that no chunk of it is stored relative to another
one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

from checkpointing.codec import Codec, WordLayout, encode
from checkpointing.errors import DamagedError
from checkpointing.format.chunks import Chunk
from checkpointing.format.element_types import element
from checkpointing.format.manifest import ManifestContent
from checkpointing.storage import Buffer
from checkpointing.store.catalog import CatalogEntry
from checkpointing.store.read.chunk_copies import StoreCopies
from checkpointing.store.read.chunk_fetcher import ChunkFetcher, ChunkRequest
from checkpointing.store.repair.manifest_revision import publish, replace_chunks
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.packer import ChunkPacker

_WORTH = 0.97  # share of the raw bytes that an encoding may take at most to be worth its decoding


def flatten(
    store: Store, run: str, found: CatalogEntry, on_bytes: Callable[[int], None] | None = None
) -> str:
    """Publish a revision in which every chunk is self-contained; return the manifest's key.

    Chunks without a base stay where they are. If no chunk has a base, nothing is written, and the
    key is that of the present manifest. Only a few chunks and packs are in memory at a time.

    Args:
        on_bytes: called with the number of raw bytes that were rewritten.

    Raises:
        FileNotFoundError: the checkpoint does not exist any more, or a prune is removing it.
        DamagedError: it cannot be read as it was written: repair it first.
        SaveError: another process revised it at the same time.
        StoreError: the store is out of reach.
    """
    with Session(store, run) as session, session.reading(found.stored.key):
        if not relative_chunks(found.document.content()):
            return found.stored.key

        def change(content: ManifestContent) -> ManifestContent:
            flat, packs = _rewrite(store, session, content, on_bytes)
            return replace_chunks(content, lambda chunk: flat.get(chunk, chunk), packs)

        return publish(store, session, found, change)


def relative_chunks(content: ManifestContent) -> dict[Chunk, tuple[str, str]]:
    """Return the chunks that have a base, each with a tensor that it belongs to and its dtype."""
    return {
        chunk: owner for chunk, owner in placed_chunks(content).items() if chunk.base is not None
    }


def placed_chunks(content: ManifestContent) -> dict[Chunk, tuple[str, str]]:
    """Return all chunks but bases, each with a tensor that it belongs to and its dtype."""
    return dict(_placed(content))


def _placed(content: ManifestContent) -> Iterator[tuple[Chunk, tuple[str, str]]]:
    for table in content.items.values():
        for name, placed in table.chunks.items():
            for chunk in placed.values():
                yield chunk, (name, table.tensors[name].dtype)


def _rewrite(
    store: Store, session: Session, content: ManifestContent, on_bytes: Callable[[int], None] | None
) -> tuple[Mapping[Chunk, Chunk], dict[bytes, int]]:
    """Return new self-contained chunks by the ones that they replace, and the packs that they lie
    in."""
    flat: dict[Chunk, Chunk] = {}
    lock = threading.Lock()

    def use(chunk: Chunk, dtype: str, raw: Buffer) -> None:
        codec, stored = self_contained(raw, dtype)
        with lock:
            flat[chunk] = packer.add(chunk.id, stored, len(raw), codec, None)

    with ChunkPacker(store.storage, session.id) as packer:
        wants = (
            ChunkRequest(chunk, dtype, name, lambda raw, c=chunk, d=dtype: use(c, d, raw))  # type: ignore[misc]
            for chunk, (name, dtype) in relative_chunks(content).items()
        )
        damaged = ChunkFetcher(store.storage, StoreCopies([store])).fetch(wants, on_bytes)
        if damaged:
            raise DamagedError(
                f"{content.header.save.id} cannot be rewritten without bases: {damaged[0]}; repair "
                "it first"
            )
        packer.finish()
    return flat, packer.packs


def self_contained(raw: Buffer, dtype: str) -> tuple[Codec, Buffer]:
    """Return content as it is stored without a base: a codec, and bytes that are not shared."""
    kind = element(dtype)
    layout = WordLayout(kind.word, kind.is_float, kind.itemsize)
    stored = encode(Codec.PLANES, raw, layout)
    if len(stored) < _WORTH * len(raw):
        return Codec.PLANES, stored
    return Codec.RAW, bytes(raw)
