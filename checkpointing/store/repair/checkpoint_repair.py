"""Repairs a checkpoint: replaces what is damaged with good copies from this store or others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from checkpointing.codec import Codec
from checkpointing.errors import DamagedError, SaveError
from checkpointing.format.chunks import Chunk
from checkpointing.format.manifest import MANIFEST, ManifestContent, ManifestDocument
from checkpointing.format.object_keys import SaveId, parse_manifest
from checkpointing.storage import Buffer
from checkpointing.store.catalog import CatalogEntry
from checkpointing.store.deletion.deletion_marks import packs_marked_for_deletion
from checkpointing.store.deletion.manifest_removal import marking_for_deletion, revisions
from checkpointing.store.inspection.integrity_check import IntegrityProblem
from checkpointing.store.read.chunk_fetcher import THREADS, ChunkFetcher, ChunkRequest
from checkpointing.store.repair.base_removal import placed_chunks, self_contained
from checkpointing.store.repair.chunk_recovery import ChunkRecovery
from checkpointing.store.repair.manifest_revision import publish, replace_chunks
from checkpointing.store.sessions.orphaned_saves import commit_orphaned_saves
from checkpointing.store.sessions.session import Session, leased
from checkpointing.store.store import Store, StoredManifest
from checkpointing.store.write.manifest_commit import check_packs, make_manifest
from checkpointing.store.write.packer import ChunkPacker

__all__ = ["RepairResult", "commit_orphaned_saves", "repair"]

logger = logging.getLogger("checkpointing")


@dataclass
class RepairResult:
    """The result of a repair."""

    healed: list[str] = field(default_factory=list)  # what was wrong, and where a copy was found
    lost: list[IntegrityProblem] = field(default_factory=list)  # what has no intact copy
    # key of the new manifest; None: nothing was damaged, or nothing could be repaired
    key: str | None = None


@dataclass(frozen=True)
class _DamagedChunk:
    """A chunk that cannot be read as it was written."""

    chunk: Chunk
    tensor: str
    dtype: str
    problem: str


@dataclass(frozen=True)
class _GoodChunk:
    """The content of a chunk in the form in which it will be stored, and where it was found."""

    stored: Buffer
    codec: Codec
    where: str


class _NothingToDo(Exception):  # noqa: N818 - no error
    """An exception that ends `publish` without a new manifest."""


def repair(
    store: Store,
    run: str,
    found: CatalogEntry | SaveId,
    others: Sequence[Store] = (),
    on_bytes: Callable[[int], None] | None = None,
    *,
    dry_run: bool = False,
) -> RepairResult:
    """Verify a checkpoint in full, and publish a revision in which all repairable damage is
    repaired.

    Copies are looked for in the other packs of this store, and in `others`. A manifest that is
    damaged or missing is rebuilt from the one that another store has of the same save, with copies
    of what is missing here. What is lost stays while the rest is repaired; but a checkpoint
    that is missing is restored completely or not at all.

    Args:
        found: the checkpoint; its save, if it has no readable manifest.
        others: stores that may hold copies; they are only read.
        on_bytes: called with the number of raw bytes that were verified.
        dry_run: write nothing; the result says what would be repaired, from verified copies.

    Raises:
        FileNotFoundError: the checkpoint was removed meanwhile, or a prune is removing it.
        FormatError: it has a format that is not known here, which is not damage.
        SaveError: another process revised it at the same time, or it was never committed.
        StoreError: a store is out of reach.
    """
    result = RepairResult()
    save = found if isinstance(found, SaveId) else found.stored.save
    there, source, problem = _find_manifests(store, save)
    if isinstance(found, CatalogEntry) and not there:
        raise FileNotFoundError(f"{save.id} of run {save.run!r} was removed in the meantime")
    if source is None:
        _check_committed(store, there)
        copy = _manifest_elsewhere(save, others)
        if copy is None:
            text = f"{problem}; no other store has it"
            result.lost.append(IntegrityProblem(save.step, save.id, "", text))
            return result
        document, other = copy
        result.healed.append(f"{problem}; from {document.where} of {other.url}")
    else:
        document = source.document
    healing = _ContentRepair(store, others, result, on_bytes, all_or_nothing=not there)
    with suppress(_NothingToDo):
        if dry_run:
            healing.look(document, source)
        else:
            result.key = _make(store, run, document, source, healing)
    return result


def _make(
    store: Store,
    run: str,
    document: ManifestDocument,
    source: CatalogEntry | None,
    healing: _ContentRepair,
) -> str:
    """Publish the repaired revision; return its key.

    Args:
        source: the checkpoint as it is here; None: nothing of it can be read, and `document` is
            another store's.
    """
    save = document.save
    with ExitStack() as stack:
        session = stack.enter_context(Session(store, run))
        change = partial(healing.change, session)
        if source is not None:
            stack.enter_context(session.reading(source.stored.key))
            key = publish(store, session, source, change)
        else:
            key = _rebuild_manifest(store, session, document, change)
        _remove_others(store, session, save, key)
    return key


def _revisions(store: Store, save: SaveId) -> list[StoredManifest]:
    """Return all manifests of a save, including abandoned ones, the last one first."""
    return [stored for stored in store.manifests(save.run) if stored.save == save]


def _check_committed(store: Store, there: Sequence[StoredManifest]) -> None:
    """Check that the save was not abandoned. (An abandoned revision says nothing about the
    checkpoint.)

    Raises:
        SaveError: the save was abandoned before it was committed.
    """
    for stored in there:
        try:
            if stored.revision == 0 and store.document(stored).kind != MANIFEST:
                raise SaveError(
                    f"{stored.save.id} was never committed: its session was declared dead"
                )
        except (DamagedError, FileNotFoundError):
            continue


def _find_manifests(
    store: Store, save: SaveId
) -> tuple[list[StoredManifest], CatalogEntry | None, str]:
    """Return all revisions, and the last one that can be read, or the problem."""
    while True:
        there = _revisions(store, save)
        found, problem = _readable(store, save, there)
        # A revision that disappeared meanwhile may have been replaced by a later one.
        if found is not None or _revisions(store, save) == there:
            return there, found, problem


def _readable(
    store: Store, save: SaveId, there: Sequence[StoredManifest]
) -> tuple[CatalogEntry | None, str]:
    """Return the last revision that can be read, or the problem."""
    problem = f"{save.manifest()}: the manifest does not exist"
    for stored in there:
        store.forget(stored.key)  # what was read before may have been damaged since
        try:
            document = store.document(stored)
            if document.kind == MANIFEST:
                document.content()
                return CatalogEntry(stored, document), ""
        except DamagedError as error:
            text = str(error)
            problem = text if stored.key in text else f"{stored.key}: {text}"
        except FileNotFoundError:
            continue
    return None, problem


def _manifest_elsewhere(
    save: SaveId, others: Sequence[Store]
) -> tuple[ManifestDocument, Store] | None:
    """Return the manifest of the same save in another store."""
    for other in others:
        _, found, _ = _find_manifests(other, save)
        if found is not None:
            return found.document, other
    return None


def _rebuild_manifest(
    store: Store,
    session: Session,
    copy: ManifestDocument,
    change: Callable[[ManifestContent], ManifestContent],
) -> str:
    """Rebuild a manifest that is missing or damaged, with the steps of a save; return its key.

    It is a revision: under the key of the first manifest, an abandoned repair would look like a
    save that was never committed.
    """
    number = _next_revision(store, copy.save)
    key = copy.save.manifest(number)
    session.announce(key)
    try:
        marked_packs = packs_marked_for_deletion(store)
        if _next_revision(store, copy.save) != number:
            raise SaveError(f"{copy.save.id} was repaired by another process at the same time")
        content = change(copy.content())
        content = replace(content, header=replace(content.header, revision=number))
        check_packs(copy.save, content, marked_packs)
        make_manifest(store, key, content, session.check)
    finally:
        session.end(key)
    return key


def _next_revision(store: Store, save: SaveId) -> int:
    return 1 + max((stored.revision for stored in _revisions(store, save)), default=0)


def _remove_others(store: Store, session: Session, save: SaveId, key: str) -> None:
    """Remove what `key` supersedes, and manifests that cannot be read: while there is one, nothing
    is swept."""
    others = [other for other in revisions(store, [save])[save] if _number(other) < _number(key)]
    if others:
        with marking_for_deletion(store, others, by=session.id) as removal:
            if not removal.why_needed(save):
                removal.remove(save)


class _ContentRepair:
    """Changes a checkpoint's content to one that is as complete as it can be."""

    def __init__(
        self,
        store: Store,
        others: Sequence[Store],
        result: RepairResult,
        on_bytes: Callable[[int], None] | None,
        *,
        all_or_nothing: bool,
    ) -> None:
        self._store, self._result, self._all_or_nothing = store, result, all_or_nothing
        self._recovery, self._on_bytes = ChunkRecovery(store, others), on_bytes

    def change(self, session: Session, content: ManifestContent) -> ManifestContent:
        """Return the repaired content, as `publish` asks for it.

        Raises:
            _NothingToDo: nothing is damaged, or nothing can be repaired.
        """
        save, healed = content.header.save, {}
        with ChunkPacker(self._store.storage, session.id) as packer:
            for damaged, good in self._recovered(self._damaged(content)):
                self._note(save, damaged, good)
                if good is not None:
                    chunk = damaged.chunk
                    healed[chunk] = packer.add(
                        chunk.id, good.stored, chunk.raw_length, good.codec, None
                    )
            packer.finish()
        self._conclude(save)
        return replace_chunks(content, lambda chunk: healed.get(chunk, chunk), packer.packs)

    def look(self, document: ManifestDocument, source: CatalogEntry | None) -> None:
        """Find out what `change` would do, and write nothing but a read lease.

        Raises:
            _NothingToDo: as `change`.
        """
        with ExitStack() as stack:
            if source is not None:
                stack.enter_context(leased(self._store, source.stored, logger.warning))
            for damaged, good in self._recovered(self._damaged(document.content())):
                self._note(document.save, damaged, good)
        self._conclude(document.save)

    def _note(self, save: SaveId, damaged: _DamagedChunk, good: _GoodChunk | None) -> None:
        if good is None:
            lost = IntegrityProblem(save.step, save.id, damaged.tensor, damaged.problem)
            self._result.lost.append(lost)
        else:
            text = f"{damaged.tensor!r}: {damaged.problem}; from {good.where}"
            self._result.healed.append(text)

    def _conclude(self, save: SaveId) -> None:
        result = self._result
        if result.lost and self._all_or_nothing:
            result.healed.clear()
            text = "not restored: it would lack chunks of which no store has an intact copy"
            result.lost.insert(0, IntegrityProblem(save.step, save.id, "", text))
        if not result.healed:
            raise _NothingToDo

    def _damaged(self, content: ManifestContent) -> list[_DamagedChunk]:
        """Return the chunks that cannot be read, and those in a pack that a sweep may delete at any
        time, which only a manifest that is rebuilt can refer to."""
        owners = placed_chunks(content)
        marked_packs = packs_marked_for_deletion(self._store)
        going = [chunk for chunk in owners if _packs(chunk) & marked_packs]
        wants = [
            ChunkRequest(chunk, dtype, name, lambda raw: None)
            for chunk, (name, dtype) in owners.items()
        ]
        found = ChunkFetcher(self._store.storage).fetch(wants, self._on_bytes)
        problems = dict.fromkeys(going, "its pack is marked for deletion")
        problems |= {damage.want.chunk: damage.problem for damage in found}
        return [_DamagedChunk(chunk, *owners[chunk], text) for chunk, text in problems.items()]

    def _recovered(
        self, damaged: Sequence[_DamagedChunk]
    ) -> Iterator[tuple[_DamagedChunk, _GoodChunk | None]]:
        """Yield each chunk with its good content, a few at a time."""
        with ThreadPoolExecutor(THREADS, "repair") as pool:
            for first in range(0, len(damaged), THREADS):
                group = damaged[first : first + THREADS]
                yield from zip(group, pool.map(self._recover, group), strict=True)

    def _recover(self, damaged: _DamagedChunk) -> _GoodChunk | None:
        found = self._recovery.recover(damaged.chunk, damaged.dtype)
        if found is None:
            return None
        codec, stored = self_contained(found[0], damaged.dtype)
        return _GoodChunk(stored, codec, found[1])


def _number(key: str) -> int:
    """Return the number of the revision from a manifest's key."""
    parsed = parse_manifest(key)
    return -1 if parsed is None else parsed[1]


def _packs(chunk: Chunk) -> set[bytes]:
    base = set() if chunk.base is None else _packs(chunk.base)
    return {chunk.pack} | base
