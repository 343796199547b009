"""Detection of leftovers: objects of a store that nothing needs, long after they should have been
removed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from checkpointing.format import object_keys
from checkpointing.runs import opened
from checkpointing.storage import ObjectInfo
from checkpointing.store import catalog
from checkpointing.store.deletion.pack_sweep import GRACE_S
from checkpointing.store.sessions.session import TTL_S

LONG_S = 2 * TTL_S + 2 * GRACE_S
"""Time after which a prune removes what a dead writer has left: its lease expires, its objects get
a deletion mark, and are then removed, each at the first prune that may do so."""


def store_leftovers(url: str, run: str, *, is_own: bool) -> list[str]:
    """Return the leftovers, one line each: objects that nothing needs and that had been so for
    `LONG_S` at the time of the last prunes. Empty if there is no store.

    Args:
        run: name of the run, whose writers have ended.
        is_own: the store belongs to this run alone; else only objects under its name are checked.

    Raises:
        StoreError: it cannot be reached.
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
        f"{entry.key} is left over: nothing needs it"
        for entry in leftover_objects(mine, packs, run, is_damaged=bool(damaged))
    ]


def leftover_objects(
    entries: Sequence[ObjectInfo], packs: Collection[str], run: str, *, is_damaged: bool
) -> Iterator[ObjectInfo]:
    """Return the leftovers. Pure.

    Args:
        entries: the objects of the store.
        packs: keys of those that checkpoints need.
        is_damaged: a manifest cannot be read, so it is not known what it needs.
    """
    commits = sorted(e.modified for e in entries if object_keys.parse_manifest(e.key) is not None)
    if len(commits) < 2:
        return
    swept = commits[-2]  # a prune has followed it, before the next
    for entry in entries:
        if entry.modified < swept - LONG_S and _is_leftover(entry.key, packs, run, is_damaged):
            yield entry


def _is_leftover(key: str, packs: Collection[str], run: str, is_damaged: bool) -> bool:
    if object_keys.parse_pack(key) is not None:
        return key not in packs and not is_damaged
    if (part := object_keys.parse_part(key)) is not None:
        return part[0].run == run
    if (lease := object_keys.parse_lease(key)) is not None:
        return lease[1] == "lease"  # fences are kept for longer
    return key.startswith(object_keys.DELETION_MARKS)
