"""Checkpoints that another store has, and this one has lost the manifests of, or never had."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass

from checkpointing.errors import DamagedError
from checkpointing.format.names import PACKS, Save, parse_pack
from checkpointing.store.catalog import CheckpointInfo, Found, committed, info_of
from checkpointing.store.store import Store
from checkpointing.store.tombs import condemned_packs


@dataclass(frozen=True)
class Gone:
    """A checkpoint that another store has, and this one has no manifest of. `is_left`: all its
    packs are here, so that it costs nothing to bring it back; or some that nothing else needs, so
    that it was not pruned, but lost."""

    info: CheckpointInfo  # what the other store says
    is_left: bool


def gone(store: Store, run: str, others: Sequence[Store]) -> list[Gone]:
    """What `repair` can bring back of a run: each once, from the first store that has it.

    Raises:
        StoreError: a store is out of reach.
    """
    known = {stored.save for stored in store.manifests(run)}
    elsewhere: dict[Save, Found] = {}
    for other in others:
        for found in committed(other, run)[0]:
            if found.stored.save not in known:
                elsewhere.setdefault(found.stored.save, found)
    if not elsewhere:
        return []
    needed = {pack for found in committed(store)[0] for pack in _packs_of(found)}
    there = {pack for e in store.storage.list(PACKS) if (pack := parse_pack(e.key)) is not None}
    there -= condemned_packs(store)
    return [
        Gone(info_of(found), is_left(set(_packs_of(found)), there, needed))
        for _, found in sorted(elsewhere.items(), key=lambda one: one[0])
    ]


def is_left(packs: Set[bytes], there: Set[bytes], needed: Set[bytes]) -> bool:
    """See `Gone`.

    Args:
        packs: that the checkpoint refers to.
        there: in the store, and not condemned.
        needed: by checkpoints of the store.
    """
    return packs <= there or bool(packs & there - needed)


def _packs_of(found: Found) -> Collection[bytes]:
    try:
        return found.document.packs().keys()
    except (DamagedError, FileNotFoundError):
        return ()
