"""Checkpoints that another store has, and this one has lost the manifests of, or never had."""

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
    """A checkpoint that another store has, and this one has no manifest of. `is_left`: all its
    packs are here, so that it costs nothing to bring it back; or some that nothing else needs, so
    that it was not pruned, but lost."""

    info: CheckpointInfo  # what the other store says
    is_left: bool


def lost_checkpoints(store: Store, run: str, others: Sequence[Store]) -> list[LostCheckpoint]:
    """What `repair` can bring back of a run: each once, from the first store that has it.

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
    """See `LostCheckpoint`.

    Args:
        packs: that the checkpoint refers to.
        there: in the store, and not condemned.
        needed: by checkpoints of the store.
    """
    return packs <= there or bool(packs & there - needed)


def _packs_of(found: CatalogEntry) -> Collection[bytes]:
    try:
        return found.document.packs().keys()
    except (DamagedError, FileNotFoundError):
        return ()
