"""Removing objects that nothing refers to: mark, condemn, and, when nobody can want them, delete.

Each step is safe on its own and may be the last one of a crashed process; the next sweep goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format import manifest as forms
from checkpointing.format import object_keys
from checkpointing.storage.temporary_object_removal import SupportsTemporaryRemoval
from checkpointing.store.deletion import deletion_marks
from checkpointing.store.deletion.manifest_removal import (
    CONDEMNED_S,
    marking_for_deletion,
    superseded,
)
from checkpointing.store.sessions import session_leases
from checkpointing.store.sessions.session_leases import SessionLease
from checkpointing.store.store import Store, StoredManifest

logger = logging.getLogger("checkpointing")

GRACE_S = 60.0  # seconds: not for safety, which the leases give, but for listings that lag (NFS)
FENCED_S = 7 * 86400.0  # seconds that fences and abandoned saves stay, for processes that slept
TEMPORARY_S = 86400.0  # seconds after which a half-written file is nobody's


@dataclass
class SweepResult:
    """What a sweep did."""

    condemned: int = 0  # packs
    deleted: int = 0  # packs
    deleted_bytes: int = 0
    waiting: dict[str, str] = field(default_factory=dict)  # tomb -> why it has to wait
    ended: list[str] = field(default_factory=list)  # sessions that were declared dead
    unreadable: list[str] = field(default_factory=list)  # manifests: while there are any, no sweep


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
    _condemn(store, now, result)
    _bury(store, now, grace_s, result)
    _remove_tombs(store, now)
    _remove_relics(store, now)
    if isinstance(store.storage, SupportsTemporaryRemoval):
        store.storage.sweep_temporaries(TEMPORARY_S)
    return result


def live_packs(store: Store, result: SweepResult) -> set[bytes] | None:
    """Packs that any manifest refers to; None if that cannot be known."""
    live: set[bytes] = set()
    for stored in store.manifests():
        try:
            document = store.document(stored)
            if document.kind == forms.MANIFEST:
                live |= document.packs().keys()
        except FileNotFoundError:
            continue
        except (DamagedError, FormatError) as error:
            logger.warning("nothing is swept while a manifest cannot be read: %s", error)
            result.unreadable.append(stored.key)
    return None if result.unreadable else live


def _condemn(store: Store, now: float, result: SweepResult) -> None:
    # in this order: a pack's save announces itself first, and has a manifest before it is done
    packs = {
        pack: e.key
        for e in store.storage.list(object_keys.PACKS)
        if (pack := object_keys.parse_pack(e.key))
    }
    saving = {h.session for h in session_leases.leases(store, now) if h.is_alive}
    live = live_packs(store, result)
    if live is None:
        return
    already = {key for _, tomb in deletion_marks.list_deletion_marks(store) for key in tomb.packs}
    garbage = [
        key
        for pack, key in packs.items()
        if pack not in live and object_keys.pack_session(pack) not in saving and key not in already
    ]
    if garbage:
        deletion_marks.write(store, packs=garbage)
        result.condemned = len(garbage)


def _bury(store: Store, now: float, grace_s: float, result: SweepResult) -> None:
    """Delete what the tombs condemn and nothing needs."""
    due = [(entry, tomb) for entry, tomb in deletion_marks.list_deletion_marks(store) if tomb.packs]
    if not due:
        return
    held = [h for h in session_leases.leases(store, now) if h.is_alive]
    manifests = {stored.key for stored in store.manifests()}
    live = live_packs(store, result)
    if live is None:
        return
    sizes = {e.key: e.size for e in store.storage.list(object_keys.PACKS)}
    # another sweep may have found some of it needed, and ended the tomb before this one looked:
    # then saves that began since may refer to it
    there = {entry.key for entry in store.storage.list(object_keys.TOMBS)}
    for entry, tomb in due:
        if entry.key not in there:
            continue
        reason = session_leases.blocks(held, entry.key, manifests)
        if grace_s > max(now - entry.modified, 0):
            reason = f"condemned {max(now - entry.modified, 0):.0f} s ago, waits {grace_s:.0f} s"
        if reason:
            result.waiting[entry.key] = reason
            continue
        doomed = [key for key in tomb.packs if object_keys.parse_pack(key) not in live]
        store.storage.delete(doomed)
        _remove_brought_back(store, {*doomed, *(key for key in tomb.packs if key not in sizes)})
        result.deleted += sum(key in sizes for key in doomed)
        result.deleted_bytes += sum(sizes.get(key, 0) for key in doomed)
        store.storage.delete([entry.key])


def _remove_brought_back(store: Store, gone: set[str]) -> None:
    """Manifests that refer to what was garbage and is gone: a committer that slept has made them
    once more after they were pruned. It has not removed them itself if it saw the packs, but then
    before they were deleted, so that the manifests are there now."""
    packs = {object_keys.parse_pack(key) for key in gone}
    for stored in store.manifests():
        try:
            document = store.document(stored)
            if document.kind != forms.MANIFEST or packs.isdisjoint(document.packs()):
                continue
        except (FileNotFoundError, DamagedError, FormatError):
            continue  # said already
        if stored.revision or session_leases.is_fenced(store, stored.save.session):
            logger.warning("%s was pruned before, and is removed once more", stored.key)
            store.storage.delete([stored.key])
            store.forget(stored.key)


def _remove_parts(store: Store) -> None:
    """Part records of saves that were committed, and of those that nobody is working on."""
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
        )  # if it was committed, this does nothing
        store.storage.delete([entry.key])


def _announced(held: Iterable[SessionLease]) -> set[str] | None:
    """Manifests that are being made; None if that cannot be known."""
    alive = [h.lease for h in held if h.is_alive]
    if any(lease is None for lease in alive):
        return None
    return {key for lease in alive if lease for key in lease.saving}


def _remove_superseded(store: Store) -> None:
    """Revisions that somebody was reading when the next one came, or whose removal crashed."""
    found = superseded(store)
    if not found:
        return
    with marking_for_deletion(store, [key for keys in found.values() for key in keys]) as removal:
        for save in found:
            if not removal.why_needed(save):
                removal.remove(save)


def _remove_tombs(store: Store, now: float) -> None:
    """Tombs of manifests that crashed prunes left. Until they go, nobody can pin what they name."""
    left = [
        (entry, tomb) for entry, tomb in deletion_marks.list_deletion_marks(store) if not tomb.packs
    ]
    if not left:
        return
    named = {key for _, tomb in left for key in tomb.manifests}
    there = {s.key for s in store.manifests() if s.key in named and not _is_abandoned(store, s)}
    for entry, tomb in left:
        if now - entry.modified > CONDEMNED_S or there.isdisjoint(tomb.manifests):
            store.storage.delete([entry.key])


def _is_abandoned(store: Store, stored: StoredManifest) -> bool:
    """Whether it stands where a manifest was, or would have been. Not, as far as is known, if it
    cannot be read."""
    try:
        return store.document(stored).kind == forms.ABANDONED
    except (FileNotFoundError, DamagedError, FormatError):
        return False


def _remove_relics(store: Store, now: float) -> None:
    old = [
        entry.key
        for entry in store.storage.list(object_keys.LEASES)
        if now - entry.modified > FENCED_S and object_keys.is_leftover(entry.key)
    ]
    for folder in (
        object_keys.RUNS,
        object_keys.LEASES,
        object_keys.TOMBS,
    ):  # of arbitrations that were cut short
        scratch = (entry for entry in store.storage.list(folder) if "~" in entry.key)
        old += [entry.key for entry in scratch if now - entry.modified > FENCED_S]
    for stored in store.manifests():
        if now - stored.modified > FENCED_S and _is_abandoned(store, stored):
            old.append(stored.key)
    store.storage.delete(old)
