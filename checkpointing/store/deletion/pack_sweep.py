"""Sweeps the store: removes objects that nothing refers to. Packs are first marked for deletion and
deleted once no session can need them.

Each step is safe on its own and may be the last one of a crashed process; the next sweep continues.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format import manifest as forms
from checkpointing.format import object_keys
from checkpointing.storage.interface import SupportsTemporaryRemoval
from checkpointing.store.deletion import deletion_marks
from checkpointing.store.deletion.manifest_removal import (
    MARKED_S,
    marking_for_deletion,
    superseded,
)
from checkpointing.store.sessions import session_leases
from checkpointing.store.sessions.session_leases import SessionLease
from checkpointing.store.store import Store, StoredManifest

logger = logging.getLogger("checkpointing")

GRACE_S = 60.0  # seconds: not for safety, which the leases ensure, but for listings that lag (NFS)
# seconds that fences and abandoned saves stay, for processes that were suspended
FENCED_S = 7 * 86400.0
TEMPORARY_S = 86400.0  # seconds after which a half-written file belongs to nobody


@dataclass
class SweepResult:
    """The result of a sweep."""

    condemned: int = 0  # packs marked for deletion
    deleted: int = 0  # packs deleted
    deleted_bytes: int = 0
    waiting: dict[str, str] = field(default_factory=dict)  # deletion mark -> why it has to wait
    ended: list[str] = field(default_factory=list)  # sessions that were fenced
    # manifests; while there are any, nothing is swept
    unreadable: list[str] = field(default_factory=list)


def sweep(store: Store, *, grace_s: float = GRACE_S) -> SweepResult:
    """Remove what unfinished saves left, and packs that no checkpoint needs.

    Raises:
        StoreError: the store is out of reach.
    """
    result = SweepResult()
    now = session_leases.storage_time(store)
    for held in session_leases.leases(store, now):
        if not held.is_alive:
            session_leases.fence(store, held.session)
            result.ended.append(held.session)
    _remove_parts(store)
    _remove_superseded(store)
    _mark_garbage(store, now, result)
    _delete_marked_packs(store, now, grace_s, result)
    _remove_stale_marks(store, now)
    _remove_leftovers(store, now)
    if isinstance(store.storage, SupportsTemporaryRemoval):
        store.storage.sweep_temporaries(TEMPORARY_S)
    return result


def live_packs(store: Store, result: SweepResult) -> set[bytes] | None:
    """Return the packs that any manifest refers to; None if that cannot be known."""
    live: set[bytes] = set()
    for stored in store.manifests():
        try:
            document = store.document(stored)
            if document.kind == forms.MANIFEST:
                live |= document.packs().keys()
        except FileNotFoundError:
            continue
        except (DamagedError, FormatError) as error:
            logger.warning("nothing is swept, because a manifest cannot be read: %s", error)
            result.unreadable.append(stored.key)
    return None if result.unreadable else live


def _mark_garbage(store: Store, now: float, result: SweepResult) -> None:
    # In this order: a save announces itself before it writes packs, and has a manifest before its
    # announcement ends.
    packs = {
        pack: e.key
        for e in store.storage.list(object_keys.PACKS)
        if (pack := object_keys.parse_pack(e.key))
    }
    saving = {h.session for h in session_leases.leases(store, now) if h.is_alive}
    live = live_packs(store, result)
    if live is None:
        return
    already = {key for _, mark in deletion_marks.list_deletion_marks(store) for key in mark.packs}
    garbage = [
        key
        for pack, key in packs.items()
        if pack not in live and object_keys.pack_session(pack) not in saving and key not in already
    ]
    if garbage:
        deletion_marks.write(store, packs=garbage)
        result.condemned = len(garbage)


def _delete_marked_packs(store: Store, now: float, grace_s: float, result: SweepResult) -> None:
    """Delete the packs that deletion marks name and nothing needs."""
    due = [(entry, mark) for entry, mark in deletion_marks.list_deletion_marks(store) if mark.packs]
    if not due:
        return
    held = [h for h in session_leases.leases(store, now) if h.is_alive]
    manifests = {stored.key for stored in store.manifests()}
    live = live_packs(store, result)
    if live is None:
        return
    sizes = {e.key: e.size for e in store.storage.list(object_keys.PACKS)}
    # Another sweep may have found some of the packs needed and removed the deletion mark before
    # this one looked; saves that began since may refer to them.
    there = {entry.key for entry in store.storage.list(object_keys.DELETION_MARKS)}
    for entry, mark in due:
        if entry.key not in there:
            continue
        reason = session_leases.blocks(held, entry.key, manifests)
        if grace_s > max(now - entry.modified, 0):
            age_s = max(now - entry.modified, 0)
            reason = f"marked for deletion {age_s:.0f} s ago, the grace period is {grace_s:.0f} s"
        if reason:
            result.waiting[entry.key] = reason
            continue
        unneeded = [key for key in mark.packs if object_keys.parse_pack(key) not in live]
        store.storage.delete(unneeded)
        _remove_recreated_manifests(
            store, {*unneeded, *(key for key in mark.packs if key not in sizes)}
        )
        result.deleted += sum(key in sizes for key in unneeded)
        result.deleted_bytes += sum(sizes.get(key, 0) for key in unneeded)
        store.storage.delete([entry.key])


def _remove_recreated_manifests(store: Store, gone: set[str]) -> None:
    """Remove manifests that refer to packs which were unneeded and are deleted: a process that was
    suspended during its commit has created such a manifest again after it was pruned. That
    process has not removed the manifest itself if it still saw the packs, but it saw them before
    they were deleted, so the manifest exists now."""
    packs = {object_keys.parse_pack(key) for key in gone}
    for stored in store.manifests():
        try:
            document = store.document(stored)
            if document.kind != forms.MANIFEST or packs.isdisjoint(document.packs()):
                continue
        except (FileNotFoundError, DamagedError, FormatError):
            continue  # already reported
        if stored.revision or session_leases.is_fenced(store, stored.save.session):
            logger.warning("%s was pruned before and is removed again", stored.key)
            store.storage.delete([stored.key])
            store.forget(stored.key)


def _remove_parts(store: Store) -> None:
    """Remove part records of saves that were committed, and of those that no session is working
    on."""
    entries = [e for e in store.storage.list(object_keys.RUNS) if object_keys.parse_part(e.key)]
    if not entries:
        return
    announced = _announced(session_leases.leases(store, session_leases.storage_time(store)))
    for entry in entries:
        parsed = object_keys.parse_part(entry.key)
        if parsed is None or announced is None or parsed[0].manifest() in announced:
            continue
        session_leases.abandon(
            store, parsed[0].manifest()
        )  # does nothing if the save was committed
        store.storage.delete([entry.key])


def _announced(held: Iterable[SessionLease]) -> set[str] | None:
    """Return the manifests that are being made; None if that cannot be known."""
    alive = [h.lease for h in held if h.is_alive]
    if any(lease is None for lease in alive):
        return None
    return {key for lease in alive if lease for key in lease.saving}


def _remove_superseded(store: Store) -> None:
    """Remove revisions that were being read when the next one was published, or whose removal
    crashed."""
    found = superseded(store)
    if not found:
        return
    with marking_for_deletion(store, [key for keys in found.values() for key in keys]) as removal:
        for save in found:
            if not removal.why_needed(save):
                removal.remove(save)


def _remove_stale_marks(store: Store, now: float) -> None:
    """Remove deletion marks of manifests that crashed prunes left. Until they are removed, nobody
    can pin what they name."""
    left = [
        (entry, mark) for entry, mark in deletion_marks.list_deletion_marks(store) if not mark.packs
    ]
    if not left:
        return
    named = {key for _, mark in left for key in mark.manifests}
    there = {s.key for s in store.manifests() if s.key in named and not _is_abandoned(store, s)}
    for entry, mark in left:
        if now - entry.modified > MARKED_S or there.isdisjoint(mark.manifests):
            store.storage.delete([entry.key])


def _is_abandoned(store: Store, stored: StoredManifest) -> bool:
    """Return whether the object is an abandoned save in the place of a manifest. False, as far as
    is known, if it cannot be read."""
    try:
        return store.document(stored).kind == forms.ABANDONED
    except (FileNotFoundError, DamagedError, FormatError):
        return False


def _remove_leftovers(store: Store, now: float) -> None:
    old = [
        entry.key
        for entry in store.storage.list(object_keys.LEASES)
        if now - entry.modified > FENCED_S and object_keys.is_leftover(entry.key)
    ]
    # objects of arbitrations that were interrupted
    for folder in (object_keys.RUNS, object_keys.LEASES, object_keys.DELETION_MARKS):
        scratch = (entry for entry in store.storage.list(folder) if "~" in entry.key)
        old += [entry.key for entry in scratch if now - entry.modified > FENCED_S]
    for stored in store.manifests():
        if now - stored.modified > FENCED_S and _is_abandoned(store, stored):
            old.append(stored.key)
    store.storage.delete(old)
