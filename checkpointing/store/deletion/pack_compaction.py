"""Compacts the store: rewrites packs of which little is still needed, so that a sweep can free the
rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from checkpointing.errors import DamagedError, SaveError
from checkpointing.format.chunks import Chunk, Place
from checkpointing.format.item_table import ItemTable
from checkpointing.format.manifest import ManifestContent
from checkpointing.format.object_keys import pack_key
from checkpointing.format.packs import MAGIC, ROW, TRAILER
from checkpointing.store.catalog import CatalogEntry, committed
from checkpointing.store.read.chunk_decoder import check_stored
from checkpointing.store.read.chunk_fetcher import ChunkFetcher
from checkpointing.store.read.read_batches import ranges
from checkpointing.store.repair.manifest_revision import publish, replace_chunks
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.packer import ChunkPacker

THRESHOLD = 0.3  # share of a pack's bytes that nothing needs, above which it is rewritten


@dataclass
class CompactionResult:
    """The result of a compaction."""

    packs: list[str] = field(default_factory=list)  # keys of the packs that were rewritten
    freed_bytes: int = 0  # bytes of these packs, which the next sweeps remove
    written_bytes: int = 0  # bytes of the new packs
    revisions: list[str] = field(default_factory=list)  # keys of the new manifests
    spared: dict[str, str] = field(default_factory=dict)  # id -> why it still needs the old packs


@dataclass
class _NeededChunks:
    """What checkpoints need of one pack."""

    size: int  # bytes of the pack
    lengths: dict[int, int] = field(default_factory=dict)  # lengths of its needed chunks, by offset

    @property
    def bytes(self) -> int:
        """The bytes of a pack with the needed chunks alone."""
        rows = len(self.lengths) * ROW.itemsize
        return len(MAGIC) + sum(self.lengths.values()) + rows + TRAILER.itemsize


def compact(
    store: Store,
    run: str | None,
    threshold: float = THRESHOLD,
    on_bytes: Callable[[int], None] | None = None,
) -> CompactionResult:
    """Copy what is needed of mostly unneeded packs into new ones, and revise all checkpoints of any
    run that refer to them. Chunks keep their stored form, and chunks that others are stored
    relative to are kept too. The old packs are removed by the next sweeps.

    Args:
        run: only packs that this run's checkpoints refer to; None: all.
        threshold: share of a pack that nothing needs, above which it is rewritten.
        on_bytes: called with the number of stored bytes that were copied.

    Raises:
        DamagedError: a manifest cannot be read, or a chunk to copy is damaged: repair it.
        SaveError: the session was fenced.
        StoreError: the store is out of reach.
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be a share from 0 to below 1, got {threshold!r}")
    live, of_run = _needed_by_pack(store, run)
    to_rewrite = choose({p: (e.size, e.bytes) for p, e in live.items() if p in of_run}, threshold)
    affected = [f for f in _committed(store) if _packs(f).keys() & to_rewrite]
    result = CompactionResult()
    if not affected:
        return result
    with ExitStack() as stack:
        session = stack.enter_context(Session(store, affected[0].stored.save.run))
        # The leases keep the checkpoints, and the new packs too until all manifests refer to them.
        affected = [found for found in affected if _hold_lease(stack, session, found)]
        moved, packs = _copy(store, session, affected, to_rewrite, on_bytes)
        result.written_bytes = sum(packs.values())
        for found in affected:
            _revise(store, session, found, moved, packs, result)
    kept = _referred(store)
    for pack in sorted(to_rewrite - kept):
        result.packs.append(pack_key(pack))
        result.freed_bytes += live[pack].size
    return result


def choose(packs: Mapping[bytes, tuple[int, int]], threshold: float) -> set[bytes]:
    """Return the packs to rewrite.

    Args:
        packs: by name, the bytes of the pack, and those of a pack with its needed chunks alone.
        threshold: share of unneeded bytes above which a pack is rewritten.
    """
    return {pack for pack, (size, needed) in packs.items() if size - needed > threshold * size}


def _committed(store: Store) -> list[CatalogEntry]:
    found, problems = committed(store)
    for save, problem in problems.items():
        raise DamagedError(f"{save.id} of run {save.run!r}: {problem}; repair or remove it first")
    return found


def _needed_by_pack(store: Store, run: str | None) -> tuple[dict[bytes, _NeededChunks], set[bytes]]:
    """Return what is needed of every pack, and which packs the run's checkpoints refer to."""
    live: dict[bytes, _NeededChunks] = {}
    of_run: set[bytes] = set()
    for found in _committed(store):
        try:
            sizes, tables = found.document.packs(), list(_tables(found))
        except FileNotFoundError:
            continue  # removed or revised since: then its chunks count a little longer than needed
        if run in (None, found.stored.save.run):
            of_run |= sizes.keys()
        for table in tables:
            for chunk in table.all_chunks():
                entry = live.setdefault(chunk.pack, _NeededChunks(sizes[chunk.pack]))
                entry.lengths[chunk.offset] = chunk.length
    return live, of_run


def _packs(found: CatalogEntry) -> Mapping[bytes, int]:
    """Return the sizes of the packs that a checkpoint refers to; empty if it was removed or revised
    since it was found."""
    try:
        return found.document.packs()
    except FileNotFoundError:
        return {}


def _tables(found: CatalogEntry) -> Iterator[ItemTable]:
    for item in found.document.items:
        yield found.document.table(item)


def _hold_lease(stack: ExitStack, session: Session, found: CatalogEntry) -> bool:
    """Hold a lease on a checkpoint until the stack ends; return False if the checkpoint is gone
    already."""
    try:
        stack.enter_context(session.reading(found.stored.key))
    except FileNotFoundError:
        return False
    return True


def _copy(
    store: Store,
    session: Session,
    affected: Iterable[CatalogEntry],
    to_rewrite: set[bytes],
    on_bytes: Callable[[int], None] | None,
) -> tuple[Mapping[Place, Chunk], dict[bytes, int]]:
    """Copy the needed chunks of the packs to rewrite; return the new place of each by its old one,
    and the new packs."""
    chunks: dict[Place, Chunk] = {}
    for found in affected:
        for table in _tables(found):
            chunks |= {c.place: c for c in table.all_chunks() if c.pack in to_rewrite}
    moved: dict[Place, Chunk] = {}
    fetcher = ChunkFetcher(store.storage)
    with ChunkPacker(store.storage, session.id) as packer:
        for group in ranges(chunks.values()):
            stored = fetcher.read_group(group)
            for chunk in group:
                data = stored[chunk.place]
                if isinstance(data, DamagedError):
                    raise DamagedError(f"{data}; repair the checkpoints that need it first")
                check_stored(chunk, data)
                moved[chunk.place] = packer.add(
                    chunk.id, data, chunk.raw_length, chunk.codec, chunk.base
                )
            if on_bytes:
                on_bytes(sum(chunk.length for chunk in group))
        packer.finish()
    return moved, packer.packs


def relocate(chunk: Chunk, moved: Mapping[Place, Chunk]) -> Chunk:
    """Return a chunk, and its bases, with their new places."""
    base = None if chunk.base is None else relocate(chunk.base, moved)
    new = moved.get(chunk.place, chunk)
    if new is chunk and base is chunk.base:
        return chunk
    return replace(chunk, pack=new.pack, offset=new.offset, base=base)


def _revise(
    store: Store,
    session: Session,
    found: CatalogEntry,
    moved: Mapping[Place, Chunk],
    packs: dict[bytes, int],
    result: CompactionResult,
) -> None:
    def change(content: ManifestContent) -> ManifestContent:
        return replace_chunks(content, lambda chunk: relocate(chunk, moved), packs)

    try:
        result.revisions.append(publish(store, session, found, change))
    except (SaveError, FileNotFoundError) as error:
        session.check()  # if the session is fenced, nothing more can be revised
        result.spared[found.stored.save.id] = str(error)


def _referred(store: Store) -> set[bytes]:
    return {pack for found in _committed(store) for pack in _packs(found)}
