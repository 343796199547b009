"""Finds the chunks that a new save may refer to instead of writing them again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format import manifest as forms
from checkpointing.format.chunk_columns import ChunkColumns, ChunksByBox
from checkpointing.format.chunks import Chunk, with_bases
from checkpointing.format.item_table import ItemTable
from checkpointing.format.manifest import ManifestDocument
from checkpointing.format.object_keys import SaveId
from checkpointing.format.tiles import Box
from checkpointing.store.deletion.deletion_marks import packs_marked_for_deletion
from checkpointing.store.store import Store, StoredManifest

logger = logging.getLogger("checkpointing")

_KEY = 8  # bytes of an id that are looked up; a hit is compared in full


@dataclass
class ChunkIndex:
    """Chunks by content, and those of the newest checkpoint of the run by place (for deltas)."""

    places: dict[str, Mapping[Box, Chunk]] = field(default_factory=dict)  # by tensor
    packs: dict[bytes, int] = field(default_factory=dict)  # packs of all chunks, with their sizes

    marked_packs: frozenset[bytes] = frozenset()  # packs that a sweep may delete at any time
    # chunks of tables that this process made
    _by_id: dict[bytes, Chunk] = field(default_factory=dict)
    _stored: list[ChunkLookup] = field(default_factory=list)  # chunks of tables that it has read

    def find(self, id_: bytes) -> Chunk | None:
        """Return a chunk with this content."""
        if (chunk := self._by_id.get(id_)) is not None:
            return chunk
        found = (stored.find(id_) for stored in self._stored)
        return next((chunk for chunk in found if chunk is not None), None)

    def at(self, name: str, box: Box) -> Chunk | None:
        """Return the chunk that the newest checkpoint has in this very place."""
        chunk = self.places.get(name, {}).get(box)
        return chunk if chunk is not None and self._is_safe(chunk) else None

    def add(self, tables: Iterable[ItemTable], packs: Mapping[bytes, int]) -> None:
        stored: dict[int, ChunkColumns] = {}  # by identity
        for placed in (placed for table in tables for placed in table.chunks.values()):
            if isinstance(placed, ChunksByBox):
                stored |= {id(segment.columns): segment.columns for segment in placed.segments}
                continue
            for chunk in with_bases(placed.values()):
                if self._is_safe(chunk):
                    self._by_id.setdefault(chunk.id, chunk)
        self._stored += [ChunkLookup(columns, self.marked_packs) for columns in stored.values()]
        self.packs.update(packs)

    def place(self, tables: Iterable[ItemTable]) -> None:
        """Record where the newest checkpoint of the run has chunks."""
        for table in tables:
            self.places |= table.chunks

    def copy(self) -> ChunkIndex:
        """Return an index of the same chunks, which may be extended."""
        return ChunkIndex(
            dict(self.places),
            dict(self.packs),
            self.marked_packs,
            dict(self._by_id),
            list(self._stored),
        )

    def _is_safe(self, chunk: Chunk) -> bool:
        return chunk.pack not in self.marked_packs and (
            chunk.base is None or self._is_safe(chunk.base)
        )


@dataclass(frozen=True)
class StoreView:
    """What exists in the store, as seen after a save was announced. Plain data, which one rank
    collects for all ranks."""

    marked_packs: frozenset[bytes]  # packs that a sweep may delete at any time
    manifests: tuple[StoredManifest, ...]  # of the run, newest first


def view_store(store: Store, run: str) -> StoreView:
    """Return the view for a save. Call it after the save was announced: only what is found then
    is safe from sweeps."""
    marked_packs = frozenset(packs_marked_for_deletion(store))  # read before manifests are listed
    return StoreView(marked_packs, tuple(store.manifests(run)))


class StoredChunks:
    """What checkpoints have that a rank has not written itself: the newest of a run or, if the run
    has none, the newest of every other run. The ranks of a node that are written with one view
    share it, so that a node reads these manifests once. Thread-safe.

    Of tables that are cut into groups of tensors, only the groups of tensors that are asked for are
    read, as the tables of thousands of ranks are terabytes for all nodes together. So a chunk that
    such a checkpoint has only under names of other groups is written again.
    """

    def __init__(self, store: Store, run: str, view: StoreView) -> None:
        self.store, self.run, self.view = store, run, view
        self._lock = threading.Lock()
        self._manifests: list[_KnownManifest] | None = None  # None: not read yet
        self._index = ChunkIndex(marked_packs=view.marked_packs)

    def index(self, tensors: Collection[str] | None = None) -> ChunkIndex:
        """Return the chunks that may be referred to. The manifests are read at the first call.

        Args:
            tensors: full names of the tensors that are to be written; None: any.
        """
        with self._lock:
            if self._manifests is None:
                self._manifests = list(self._open())
            index: ChunkIndex | None = None
            try:
                for manifest in self._manifests:
                    if tables := manifest.unread(tensors):
                        # a rank that is being written has the index as it was
                        index = index or self._index.copy()
                        index.add(tables, manifest.document.packs())
                        if manifest.is_own:
                            index.place(tables)
            finally:  # what was read before the store was out of reach is not read again
                self._index = index or self._index
            return self._index

    def _open(self) -> Iterator[_KnownManifest]:
        if mine := self._newest(self.view.manifests, is_own=True):
            yield mine
            return
        runs: dict[str, list[StoredManifest]] = {}
        for stored in self.store.manifests():
            runs.setdefault(stored.save.run, []).append(stored)
        for manifests in runs.values():
            if found := self._newest(manifests, is_own=False):
                yield found

    def _newest(
        self, manifests: Iterable[StoredManifest], *, is_own: bool
    ) -> _KnownManifest | None:
        for stored in manifests:  # newest first
            try:
                document = self.store.document(stored)
                if document.kind == forms.MANIFEST:
                    return _KnownManifest(document, is_own=is_own)
            except FileNotFoundError:
                continue
            except (DamagedError, FormatError) as error:
                logger.warning("cannot look for known chunks in %s: %s", stored.key, error)
        return None


class _KnownManifest:
    """A manifest of which each table is read once, as a whole or by groups of tensors."""

    def __init__(self, document: ManifestDocument, *, is_own: bool) -> None:
        """Read the tables that are not cut into groups.

        Args:
            is_own: whether it is of the run that is being saved.

        Raises:
            FileNotFoundError: it was removed.
            DamagedError, FormatError: it cannot be used.
        """
        self.document, self.is_own = document, is_own
        document.packs()
        grouped = {item: document.is_grouped(item) for item in document.items}
        self._whole = [document.table(item) for item in grouped if not grouped[item]]
        self._outlines = {item: document.outline(item) for item in grouped if grouped[item]}
        self._read: set[tuple[str, int]] = set()  # items and numbers of groups

    def unread(self, tensors: Collection[str] | None) -> list[ItemTable]:
        """Return the tables that were not returned before: all that are not cut into groups, and
        the groups of these tensors; None: all groups."""
        places = [place for place in self._groups_of(tensors) if place not in self._read]
        groups = [self._group(*place) for place in places]
        tables = [*self._whole, *(table for table in groups if table is not None)]
        self._whole = []
        self._read.update(places)
        return tables

    def _group(self, item: str, number: int) -> ItemTable | None:
        try:
            return self.document.group(item, self._outlines[item], number)
        except FileNotFoundError:
            return None
        except (DamagedError, FormatError) as error:
            logger.warning("cannot look for known chunks: %s", error)
            return None

    def _groups_of(self, tensors: Collection[str] | None) -> Iterable[tuple[str, int]]:
        if tensors is None:
            return [(at, n) for at, one in self._outlines.items() for n in range(len(one.groups))]
        found: dict[tuple[str, int], None] = {}
        for name in tensors:
            outline = self._outlines.get(item := forms.item_of(name))
            if outline is not None and (number := outline.group_of.get(name)) is not None:
                found[item, number] = None
        return found


@dataclass
class RunChunkIndex:
    """The index of a run, kept from save to save by one rank of its session.

    Of its own last checkpoint a rank remembers the part that it wrote itself. Manifests are read
    only at the beginning, see `StoredChunks`.
    """

    store: Store
    run: str
    _written: dict[SaveId, tuple[str, Mapping[str, ItemTable], Mapping[bytes, int]]] = field(
        default_factory=dict
    )

    def index(
        self, stored: StoredChunks | None = None, tensors: Collection[str] | None = None
    ) -> ChunkIndex:
        """Return the chunks that may be referred to now.

        Args:
            stored: with a view that was created after the save was announced; None: it is created
                now.
            tensors: as of `StoredChunks.index`.
        """
        stored = stored or StoredChunks(self.store, self.run, view_store(self.store, self.run))
        view = stored.view
        for save in list(self._written):
            if self._written[save][0] not in {found.key for found in view.manifests}:
                del self._written[save]
        if not self._written:
            return stored.index(tensors)
        index = ChunkIndex(marked_packs=view.marked_packs)
        _, tables, packs = self._written[max(self._written)]
        index.place(tables.values())
        index.add(tables.values(), packs)
        return index

    def committed(
        self, save: SaveId, tables: Mapping[str, ItemTable], packs: Mapping[bytes, int]
    ) -> None:
        """Remember what this rank wrote or referred to, now that it is committed."""
        self._written = {save: (save.manifest(), tables, packs)}


class ChunkLookup:
    """The chunks of some columns that may be referred to safely, by content. No objects are created
    for chunks that are never asked for."""

    def __init__(self, columns: ChunkColumns, marked_packs: Collection[bytes]) -> None:
        """Index the columns.

        Args:
            marked_packs: packs marked for deletion. A chunk in one of them is not safe, nor is one
                that is relative to it.
        """
        self._columns = columns
        rows = np.flatnonzero(~_unsafe(columns, marked_packs))
        keys = np.ascontiguousarray(columns["id"][rows, :_KEY]).view("<u8").reshape(-1)
        order = np.argsort(keys, kind="stable")
        self._rows, self._keys = rows[order], keys[order]

    def find(self, id_: bytes) -> Chunk | None:
        """Return the first chunk with this content."""
        key = np.frombuffer(id_, "<u8", 1)
        low, end = (int(np.searchsorted(self._keys, key, side)[0]) for side in ("left", "right"))
        for row in self._rows[low:end]:
            if self._columns["id"][row].tobytes() == id_:
                return self._columns.chunks(np.array([row]))[0]
        return None


def _unsafe(columns: ChunkColumns, marked_packs: Collection[bytes]) -> NDArray[np.bool_]:
    is_marked = np.array([pack in marked_packs for pack in columns.packs], bool)
    found = is_marked[columns["pack"]] if len(columns) else np.zeros(0, bool)
    bases = columns["base"].astype(np.int64)
    has_base = np.flatnonzero(bases >= 0)
    while True:
        more = has_base[found[bases[has_base]] & ~found[has_base]]
        if not len(more):
            return found
        found[more] = True
