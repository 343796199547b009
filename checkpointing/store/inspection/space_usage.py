"""What checkpoints cost: bytes that only one of them needs, that several share, and that none does.

What is counted is copies of chunks by where they lie, each once per store.
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

# a copy of a chunk: the index of its pack in Refs.packs, where it starts and ends, who refers to it
_REF = np.dtype([("pack", "<i8"), ("offset", "<i8"), ("length", "<i8"), ("owner", "<i8")])
_Rows = NDArray[Any]


@dataclass(frozen=True)
class ItemOfSave:
    """One item of one checkpoint."""

    save: SaveId
    item: str


@dataclass
class ChunkReferences:
    """Who refers to what, in a whole store: 32 bytes of memory per reference."""

    owners: list[ItemOfSave] = field(default_factory=list)
    packs: dict[bytes, int] = field(default_factory=dict)  # name -> index
    _rows: list[_Rows] = field(default_factory=list)
    _is_sorted: bool = False

    def add(self, save: SaveId, item: str, chunks: Iterable[Chunk]) -> None:
        """An item, and all chunks and bases that it refers to, in any order, also repeatedly."""
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
        """All references, those to one place next to each other."""
        if not self._is_sorted:
            rows = np.concatenate([np.zeros(0, _REF), *self._rows])
            self._rows = [rows[np.lexsort((rows["offset"], rows["pack"]))]]
            self._is_sorted = True
        return self._rows[0]


@dataclass(frozen=True)
class StoredCost:
    """Stored bytes."""

    total: int  # of all that it refers to
    alone: int  # of what no other checkpoint refers to: what removing it would free

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
    """The packs of a store, in bytes of whole objects."""

    packs: int
    bytes: int
    live_bytes: int  # chunks that a checkpoint needs, and their rows in the packs' tables
    dead_bytes: int  # in packs that are needed for other chunks: `compact` frees them
    garbage_packs: (
        int  # that no checkpoint refers to: prune frees them, unless a save is using them
    )
    garbage_bytes: int
    missing: tuple[str, ...]  # keys of packs that are referred to, but not there


@dataclass(frozen=True)
class UnneededSpace:
    """Bytes of packs that no checkpoint needs, so that nobody checks them."""

    bytes: int  # all of it
    packs: int  # that no checkpoint refers to: of saves that run, were not finished or were removed
    pack_bytes: int  # of these
    condemned_bytes: int  # of these, what prune has named already, and deletes after a while
    dead_bytes: int  # in packs that are needed for other chunks
    is_most: bool  # checkpoints that cannot be read may need some of it


@dataclass(frozen=True)
class FreedSpace:
    """What removing checkpoints, or items of them, frees."""

    bytes: int  # of chunks that nothing else refers to
    packs: int  # in which nothing else is left, so that they go
    pack_bytes: int  # chunks in these packs; the rest of `bytes` stays dead in other packs


def per_checkpoint(refs: ChunkReferences) -> list[CheckpointUsage]:
    """What each checkpoint costs, in the order in which they were added."""
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
    """What the packs of a store are filled with.

    Args:
        sizes: of all packs that there are, by name, in bytes.
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
    """What is freed if every owner goes of whom `goes` says so."""
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
    """A store, read: what its checkpoints refer to, and what could not be read."""

    refs: ChunkReferences
    sizes: Mapping[bytes, int]  # of the packs that there are, in bytes
    problems: Mapping[
        SaveId, str
    ]  # whose tables cannot be read: what they need counts as not needed
    stored: Mapping[
        SaveId, int
    ]  # what each states of itself: bases are not in it, shared bytes are


def unneeded(measured: MeasuredStore, condemned: Collection[bytes]) -> UnneededSpace:
    """What of a store no checkpoint needs.

    Args:
        condemned: packs that tombs name.
    """
    packs = pack_usage(measured.refs, measured.sizes)
    waiting = set(condemned) - measured.refs.packs.keys()
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
        on_checkpoint: told 1 after each.

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
    # packs last: what is referred to and was not removed meanwhile is in the listing
    entries = store.storage.list(object_keys.PACKS)
    sizes = {pack: e.size for e in entries if (pack := object_keys.parse_pack(e.key)) is not None}
    return MeasuredStore(refs, sizes, problems, {f.stored.save: f.stored_bytes for f in found})


def _groups(rows: _Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each place begins in sorted rows, and for every row which place it is."""
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (np.diff(rows["pack"]) != 0) | (np.diff(rows["offset"]) != 0)
    return np.flatnonzero(is_new), np.cumsum(is_new) - 1


def _all(flags: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Per place, whether the flag holds for all its rows."""
    if not len(flags):
        return flags
    found: NDArray[np.bool_] = np.logical_and.reduceat(flags, starts)
    return found


def _first_of_pairs(group: NDArray[np.int64], save: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows that name each pair of place and checkpoint once."""
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
