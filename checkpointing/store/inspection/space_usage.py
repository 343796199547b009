"""Computes what checkpoints cost: bytes that only one of them needs, that several share, and that
none needs.

Copies of chunks are counted by where they lie, each once per store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format import object_keys
from checkpointing.format.chunks import Chunk
from checkpointing.format.object_keys import SaveId
from checkpointing.format.packs import MAGIC, ROW, TRAILER
from checkpointing.store.catalog import committed
from checkpointing.store.store import Store

# A reference to a copy of a chunk: the index of its pack in ChunkReferences.packs, its offset and
# length, and the index of the item that refers to it.
_REF = np.dtype([("pack", "<i8"), ("offset", "<i8"), ("length", "<i8"), ("owner", "<i8")])
_Rows = NDArray[Any]


@dataclass(frozen=True)
class ItemOfSave:
    """One item of one checkpoint."""

    save: SaveId
    item: str


@dataclass
class ChunkReferences:
    """All references to chunks in a store: 32 bytes of memory per reference."""

    owners: list[ItemOfSave] = field(default_factory=list)
    packs: dict[bytes, int] = field(default_factory=dict)  # name -> index
    _rows: list[_Rows] = field(default_factory=list)
    _is_sorted: bool = False

    def add(self, save: SaveId, item: str, chunks: Iterable[Chunk]) -> None:
        """Add an item with all chunks and bases that it refers to, in any order; they may
        repeat."""
        places = {(c.pack, c.offset): c.length for c in chunks}
        rows = np.zeros(len(places), _REF)
        rows["pack"] = [self.packs.setdefault(pack, len(self.packs)) for pack, _ in places]
        rows["offset"] = [offset for _, offset in places]
        rows["length"] = list(places.values())
        rows["owner"] = len(self.owners)
        self.owners.append(ItemOfSave(save, item))
        self._rows.append(rows)
        self._is_sorted = False

    def rows(self) -> _Rows:
        """All references; those to one place follow each other."""
        if not self._is_sorted:
            rows = np.concatenate([np.zeros(0, _REF), *self._rows])
            self._rows = [rows[np.lexsort((rows["offset"], rows["pack"]))]]
            self._is_sorted = True
        return self._rows[0]


@dataclass(frozen=True)
class StoredCost:
    """A number of stored bytes."""

    total: int  # bytes of everything that it refers to
    alone: int  # bytes that no other checkpoint refers to, which its removal would free

    @property
    def shared(self) -> int:
        return self.total - self.alone


@dataclass(frozen=True)
class CheckpointUsage:
    """What one checkpoint costs. Items may share chunks, so their sum may exceed the whole."""

    save: SaveId
    cost: StoredCost
    items: Mapping[str, StoredCost]


@dataclass(frozen=True)
class PackUsage:
    """The content of a store's packs, in bytes of whole objects."""

    packs: int
    bytes: int
    live_bytes: int  # chunks that a checkpoint needs, and their rows in the packs' tables
    # unneeded bytes in packs that are needed for other chunks; a compaction frees them
    dead_bytes: int
    # packs that no checkpoint refers to; a sweep frees them, unless a save is using them
    garbage_packs: int
    garbage_bytes: int
    missing: tuple[str, ...]  # keys of packs that are referred to, but missing


@dataclass(frozen=True)
class UnneededSpace:
    """Bytes of packs that no checkpoint needs, and that no check reads."""

    bytes: int  # all of it
    # packs that no checkpoint refers to: of saves that run, were not finished or were removed
    packs: int
    pack_bytes: int  # bytes of these packs
    condemned_bytes: int  # bytes of those packs that are marked for deletion
    dead_bytes: int  # unneeded bytes in packs that are needed for other chunks
    is_most: bool  # checkpoints that cannot be read may need some of it


@dataclass(frozen=True)
class FreedSpace:
    """The space that the removal of checkpoints, or of items of them, frees."""

    bytes: int  # bytes of chunks that nothing else refers to
    packs: int  # packs in which nothing else is left, so that they are removed
    # bytes of chunks in these packs; the rest of `bytes` stays unneeded in other packs
    pack_bytes: int


def per_checkpoint(refs: ChunkReferences) -> list[CheckpointUsage]:
    """Return what each checkpoint costs, in the order in which they were added."""
    saves = list(dict.fromkeys(owner.save for owner in refs.owners))
    index = {save: i for i, save in enumerate(saves)}
    save_of = np.array([index[owner.save] for owner in refs.owners], np.int64)
    rows = refs.rows()
    starts, group = _groups(rows)
    save = save_of[rows["owner"]] if len(rows) else np.zeros(0, np.int64)
    is_alone = _all(save == save[starts][group], starts)[group]
    of_items = _costs(rows["owner"], rows["length"], is_alone, len(refs.owners))
    once = _first_of_pairs(group, save)
    of_saves = _costs(save[once], rows["length"][once], is_alone[once], len(saves))
    items: dict[SaveId, dict[str, StoredCost]] = {save: {} for save in saves}
    for owner, cost in zip(refs.owners, of_items, strict=True):
        items[owner.save][owner.item] = cost
    return [CheckpointUsage(s, cost, items[s]) for s, cost in zip(saves, of_saves, strict=True)]


def pack_usage(refs: ChunkReferences, sizes: Mapping[bytes, int]) -> PackUsage:
    """Return what the packs of a store are filled with.

    Args:
        sizes: bytes of all packs that exist, by name.
    """
    rows = refs.rows()
    starts, _ = _groups(rows)
    live = np.bincount(
        rows["pack"][starts], rows["length"][starts] + ROW.itemsize, minlength=len(refs.packs)
    ).astype(np.int64)
    frame = len(MAGIC) + TRAILER.itemsize
    used = {pack: int(live[i]) + frame for pack, i in refs.packs.items() if pack in sizes}
    garbage = [size for pack, size in sizes.items() if pack not in used]
    missing = sorted(object_keys.pack_key(pack) for pack in refs.packs if pack not in sizes)
    return PackUsage(
        packs=len(sizes),
        bytes=sum(sizes.values()),
        live_bytes=sum(used.values()),
        dead_bytes=sum(max(sizes[pack] - bytes_, 0) for pack, bytes_ in used.items()),
        garbage_packs=len(garbage),
        garbage_bytes=sum(garbage),
        missing=tuple(missing),
    )


def freed(refs: ChunkReferences, goes: Callable[[ItemOfSave], bool]) -> FreedSpace:
    """Return what is freed if every item for which `goes` returns True is removed."""
    rows = refs.rows()
    starts, _ = _groups(rows)
    owner_goes = np.array([goes(owner) for owner in refs.owners], bool)
    is_going = owner_goes[rows["owner"]] if len(rows) else np.zeros(0, bool)
    is_free = _all(is_going, starts)
    first = rows[starts]
    stays = np.bincount(first["pack"][~is_free], minlength=len(refs.packs)) > 0
    in_free_pack = is_free & ~stays[first["pack"]]
    return FreedSpace(
        bytes=int(first["length"][is_free].sum()),
        packs=len(np.unique(first["pack"][in_free_pack])),
        pack_bytes=int(first["length"][in_free_pack].sum()),
    )


@dataclass(frozen=True)
class MeasuredStore:
    """The references of a store's checkpoints as they were read, and what could not be read."""

    refs: ChunkReferences
    sizes: Mapping[bytes, int]  # bytes of the packs that exist
    # checkpoints whose tables cannot be read: what they need counts as not needed
    problems: Mapping[SaveId, str]
    # bytes that each manifest states: without bases, including shared bytes
    stored: Mapping[SaveId, int]


def unneeded(measured: MeasuredStore, marked_packs: Collection[bytes]) -> UnneededSpace:
    """Return the bytes of a store that no checkpoint needs.

    Args:
        marked_packs: packs that deletion marks name.
    """
    packs = pack_usage(measured.refs, measured.sizes)
    waiting = set(marked_packs) - measured.refs.packs.keys()
    return UnneededSpace(
        bytes=packs.garbage_bytes + packs.dead_bytes,
        packs=packs.garbage_packs,
        pack_bytes=packs.garbage_bytes,
        condemned_bytes=sum(measured.sizes.get(pack, 0) for pack in waiting),
        dead_bytes=packs.dead_bytes,
        is_most=bool(measured.problems),
    )


def measure(store: Store, on_checkpoint: Callable[[int], None] | None = None) -> MeasuredStore:
    """Read the tables of all checkpoints of a store.

    Args:
        on_checkpoint: called with 1 after each.

    Raises:
        StoreError: the store is out of reach.
    """
    refs = ChunkReferences()
    found, unreadable = committed(store)
    problems = dict(unreadable)
    for one in sorted(found, key=lambda f: f.stored.save):
        try:
            for item in one.document.items:
                refs.add(one.stored.save, item, one.document.table(item).all_chunks())
        except FileNotFoundError:  # removed meanwhile, so it costs nothing
            continue
        except (DamagedError, FormatError) as error:
            problems[one.stored.save] = str(error)
        if on_checkpoint:
            on_checkpoint(1)
    # Packs are listed last: a pack that is referred to and was not removed meanwhile is listed.
    entries = store.storage.list(object_keys.PACKS)
    sizes = {pack: e.size for e in entries if (pack := object_keys.parse_pack(e.key)) is not None}
    return MeasuredStore(refs, sizes, problems, {f.stored.save: f.stored_bytes for f in found})


def _groups(rows: _Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each place begins in sorted rows, and for every row the index of its place."""
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (np.diff(rows["pack"]) != 0) | (np.diff(rows["offset"]) != 0)
    return np.flatnonzero(is_new), np.cumsum(is_new) - 1


def _all(flags: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return, per place, whether the flag holds for all its rows."""
    if not len(flags):
        return flags
    found: NDArray[np.bool_] = np.logical_and.reduceat(flags, starts)
    return found


def _first_of_pairs(group: NDArray[np.int64], save: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows that name each pair of place and checkpoint once."""
    pairs = group * (int(save.max(initial=0)) + 1) + save
    first: NDArray[np.int64] = np.unique(pairs, return_index=True)[1]
    return first


def _costs(
    of: NDArray[np.int64], length: NDArray[np.int64], is_alone: NDArray[np.bool_], count: int
) -> Sequence[StoredCost]:
    total, alone = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(total, of, length)
    np.add.at(alone, of[is_alone], length[is_alone])
    return [StoredCost(int(t), int(a)) for t, a in zip(total, alone, strict=True)]
