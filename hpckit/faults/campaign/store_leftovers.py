"""What is left in a store that nothing needs, long after it should have been removed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from checkpointing.format import object_keys
from checkpointing.runs import opened
from checkpointing.storage import ObjectInfo
from checkpointing.store import catalog
from checkpointing.store.deletion.pack_sweep import GRACE_S
from checkpointing.store.sessions.session import TTL_S

LONG_S = 2 * TTL_S + 2 * GRACE_S
"""After which a prune takes what a dead writer has left: its lease runs out, what it wrote is
condemned, and then removed; each at the first prune that may."""


def store_leftovers(url: str, run: str, *, is_own: bool) -> list[str]:
    """Objects that are nobody's, and were so for `LONG_S` when the last prunes came; a line each.
    None where there is no store.

    Args:
        run: name of the run, whose writers are gone.
        is_own: the store is this run's alone: else only objects under its name are looked at.

    Raises:
        StoreError: it is out of reach.
    """
    try:
        with opened(url) as store:
            entries = list(store.storage.list(""))
            found, damaged = catalog.committed(store)
    except FileNotFoundError:
        return []
    packs = {object_keys.pack_key(pack) for one in found for pack in one.document.packs()}
    mine = [e for e in entries if is_own or e.key.startswith(f"{object_keys.RUNS}{run}/")]
    return [
        f"{entry.key} is left: nothing needs it"
        for entry in leftover_objects(mine, packs, run, is_damaged=bool(damaged))
    ]


def leftover_objects(
    entries: Sequence[ObjectInfo], packs: Collection[str], run: str, *, is_damaged: bool
) -> Iterator[ObjectInfo]:
    """Pure.

    Args:
        entries: what the store has.
        packs: keys of those that checkpoints need.
        is_damaged: there is a manifest that cannot be read: what it needs is not known.
    """
    commits = sorted(e.modified for e in entries if object_keys.parse_manifest(e.key) is not None)
    if len(commits) < 2:
        return
    swept = commits[-2]  # a prune has followed it, before the next
    for entry in entries:
        if entry.modified < swept - LONG_S and _is_nobodys(entry.key, packs, run, is_damaged):
            yield entry


def _is_nobodys(key: str, packs: Collection[str], run: str, is_damaged: bool) -> bool:
    if object_keys.parse_pack(key) is not None:
        return key not in packs and not is_damaged
    if (part := object_keys.parse_part(key)) is not None:
        return part[0].run == run
    if (lease := object_keys.parse_lease(key)) is not None:
        return lease[1] == "lease"  # fences stay for longer
    return key.startswith(object_keys.TOMBS)
