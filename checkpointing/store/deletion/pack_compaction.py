"""Rewriting packs of which little is still needed, so that a sweep can free the rest."""

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
    """What a compaction did."""

    packs: list[str] = field(default_factory=list)  # keys of those that were rewritten
    freed_bytes: int = 0  # of these packs: what the next sweeps remove
    written_bytes: int = 0  # of the new ones
    revisions: list[str] = field(default_factory=list)  # keys of the new manifests
    spared: dict[str, str] = field(default_factory=dict)  # id -> why it still needs the old packs


@dataclass
class _Live:
    """What checkpoints need of one pack."""

    size: int  # bytes of the pack
    lengths: dict[int, int] = field(default_factory=dict)  # of its needed chunks, by offset

    @property
    def bytes(self) -> int:
        """Of a pack of the needed chunks alone."""
        rows = len(self.lengths) * ROW.itemsize
        return len(MAGIC) + sum(self.lengths.values()) + rows + TRAILER.itemsize


def compact(
    store: Store,
    run: str | None,
    threshold: float = THRESHOLD,
    on_bytes: Callable[[int], None] | None = None,
) -> CompactionResult:
    """Copy what is needed of packs that are mostly dead into new ones, and revise all checkpoints
    that refer to them, of any run. The chunks stay as they are stored; what they need of other
    chunks stays too. What is freed goes with the next sweeps.

    Args:
        run: only packs that its checkpoints refer to; None: all.
        threshold: share of a pack that is dead, above which it is rewritten.
        on_bytes: told how many stored bytes were copied.

    Raises:
        DamagedError: a manifest cannot be read, or what would be copied is damaged: repair it.
        SaveError: the session was declared dead.
        StoreError: the store is out of reach.
    """
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold is a share from 0 to below 1, got {threshold!r}")
    live, of_run = _survey(store, run)
    victims = choose({p: (e.size, e.bytes) for p, e in live.items() if p in of_run}, threshold)
    affected = [f for f in _committed(store) if _packs(f).keys() & victims]
    result = CompactionResult()
    if not affected:
        return result
    with ExitStack() as stack:
        session = stack.enter_context(Session(store, affected[0].stored.save.run))
        # keeps the checkpoints where they are, and the new packs too until all refer to them
        affected = [found for found in affected if _hold(stack, session, found)]
        moved, packs = _copy(store, session, affected, victims, on_bytes)
        result.written_bytes = sum(packs.values())
        for found in affected:
            _revise(store, session, found, moved, packs, result)
    kept = _referred(store)
    for pack in sorted(victims - kept):
        result.packs.append(pack_key(pack))
        result.freed_bytes += live[pack].size
    return result


def choose(packs: Mapping[bytes, tuple[int, int]], threshold: float) -> set[bytes]:
    """The packs to rewrite.

    Args:
        packs: by name, bytes that it has, and that a pack of its needed chunks alone would have.
        threshold: share of dead bytes above which it pays.
    """
    return {pack for pack, (size, needed) in packs.items() if size - needed > threshold * size}


def _committed(store: Store) -> list[CatalogEntry]:
    found, problems = committed(store)
    for save, problem in problems.items():
        raise DamagedError(f"{save.id} of run {save.run!r}: {problem}; repair or remove it first")
    return found


def _survey(store: Store, run: str | None) -> tuple[dict[bytes, _Live], set[bytes]]:
    """What is needed of every pack, and which packs the run's checkpoints refer to."""
    live: dict[bytes, _Live] = {}
    of_run: set[bytes] = set()
    for found in _committed(store):
        try:
            sizes, tables = found.document.packs(), list(_tables(found))
        except FileNotFoundError:
            continue  # removed since, or revised: then its chunks count a little too late
        if run in (None, found.stored.save.run):
            of_run |= sizes.keys()
        for table in tables:
            for chunk in table.all_chunks():
                entry = live.setdefault(chunk.pack, _Live(sizes[chunk.pack]))
                entry.lengths[chunk.offset] = chunk.length
    return live, of_run


def _packs(found: CatalogEntry) -> Mapping[bytes, int]:
    """Sizes of what it refers to; nothing if it was removed, or revised, since it was found."""
    try:
        return found.document.packs()
    except FileNotFoundError:
        return {}


def _tables(found: CatalogEntry) -> Iterator[ItemTable]:
    for item in found.document.items:
        yield found.document.table(item)


def _hold(stack: ExitStack, session: Session, found: CatalogEntry) -> bool:
    """Keep a checkpoint until the stack ends; False if it is gone already."""
    try:
        stack.enter_context(session.reading(found.stored.key))
    except FileNotFoundError:
        return False
    return True


def _copy(
    store: Store,
    session: Session,
    affected: Iterable[CatalogEntry],
    victims: set[bytes],
    on_bytes: Callable[[int], None] | None,
) -> tuple[Mapping[Place, Chunk], dict[bytes, int]]:
    """The new place of every chunk that is needed of the victims, by its old one, and the packs."""
    chunks: dict[Place, Chunk] = {}
    for found in affected:
        for table in _tables(found):
            chunks |= {c.place: c for c in table.all_chunks() if c.pack in victims}
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
    """A chunk, and its bases, where they lie now."""
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
        session.check()  # if it is dead, nothing more can be revised
        result.spared[found.stored.save.id] = str(error)


def _referred(store: Store) -> set[bytes]:
    return {pack for found in _committed(store) for pack in _packs(found)}
