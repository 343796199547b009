"""Finds checkpoints that another store has, and whose manifests this one has lost or never had."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass

from checkpointing.errors import DamagedError
from checkpointing.format.object_keys import PACKS, SaveId, parse_pack
from checkpointing.store.catalog import CatalogEntry, CheckpointInfo, committed, info_of
from checkpointing.store.deletion.deletion_marks import packs_marked_for_deletion
from checkpointing.store.store import Store


@dataclass(frozen=True)
class LostCheckpoint:
    """A checkpoint of another store of which this one has no manifest. `is_left`: all its
    packs are here, so that restoring it costs nothing; or some packs that nothing else needs, which
    shows that it was not pruned, but lost."""

    info: CheckpointInfo  # as in the other store
    is_left: bool


def lost_checkpoints(store: Store, run: str, others: Sequence[Store]) -> list[LostCheckpoint]:
    """Return what `repair` can restore of a run: each checkpoint once, from the first store that
    has it.

    Raises:
        StoreError: a store is out of reach.
    """
    known = {stored.save for stored in store.manifests(run)}
    elsewhere: dict[SaveId, CatalogEntry] = {}
    for other in others:
        for found in committed(other, run)[0]:
            if found.stored.save not in known:
                elsewhere.setdefault(found.stored.save, found)
    if not elsewhere:
        return []
    needed = {pack for found in committed(store)[0] for pack in _packs_of(found)}
    there = {pack for e in store.storage.list(PACKS) if (pack := parse_pack(e.key)) is not None}
    there -= packs_marked_for_deletion(store)
    return [
        LostCheckpoint(info_of(found), is_left(set(_packs_of(found)), there, needed))
        for _, found in sorted(elsewhere.items(), key=lambda one: one[0])
    ]


def is_left(packs: Set[bytes], there: Set[bytes], needed: Set[bytes]) -> bool:
    """Return whether a checkpoint's packs show that it was lost, see `LostCheckpoint`.

    Args:
        packs: packs that the checkpoint refers to.
        there: packs in the store that are not marked for deletion.
        needed: packs that checkpoints of the store need.
    """
    return packs <= there or bool(packs & there - needed)


def _packs_of(found: CatalogEntry) -> Collection[bytes]:
    try:
        return found.document.packs().keys()
    except (DamagedError, FileNotFoundError):
        return ()
