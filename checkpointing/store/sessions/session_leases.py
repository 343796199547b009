"""Reads the leases of other sessions: which are alive, and how to fence those that are not."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format import object_keys
from checkpointing.format.manifest import build_abandoned
from checkpointing.format.store_records import Lease, load_lease
from checkpointing.storage import ObjectInfo
from checkpointing.store.store import Store

logger = logging.getLogger("checkpointing")

UNREADABLE_S = 24 * 3600.0  # seconds that a lease which cannot be read keeps everything protected


@dataclass(frozen=True)
class SessionLease:
    """What a session states in its leases, and how old the newest is by the storage's clock."""

    session: str
    lease: Lease | None  # None: it cannot be read
    age_s: float

    @property
    def is_alive(self) -> bool:
        ttl_s = UNREADABLE_S if self.lease is None else self.lease.ttl_s
        return self.age_s <= ttl_s


def storage_time(store: Store) -> float:
    """Return the present Unix time in seconds by the storage's clock."""
    key = object_keys.clock(secrets.token_hex(4))
    store.storage.put(key, [b"clock"])
    try:
        return next(
            entry.modified for entry in store.storage.list(object_keys.LEASES) if entry.key == key
        )
    finally:
        store.storage.delete([key])


def leases(store: Store, now: float) -> list[SessionLease]:
    """Return all sessions that have leases."""
    found: dict[str, SessionLease] = {}
    for entry, session, lease in _read_all(store):
        held = SessionLease(session, lease, now - entry.modified)
        found[session] = _join(found[session], held) if session in found else held
    return list(found.values())


def of_session(store: Store, session: str) -> tuple[list[str], SessionLease | None]:
    """Return the keys of the leases of one session, and what they state; None if there are none.
    The age counts from Unix time 0 by the storage's clock."""
    held: SessionLease | None = None
    found = _read_all(store, session)
    for entry, _, lease in found:
        one = SessionLease(session, lease, -entry.modified)
        held = one if held is None else _join(held, one)
    return [entry.key for entry, _, _ in found], held


def _read_all(
    store: Store, session: str | None = None
) -> list[tuple[ObjectInfo, str, Lease | None]]:
    """Return all leases, or those of one session, with their sessions; None for one that cannot be
    read.

    A lease that is gone when it is read may have been renewed, and a listing concurrent with a
    renewal may show neither of the two. So leases are listed again until a second listing shows
    nothing new.
    """
    listed = _listed(store, session)
    while True:
        found, before = _read(store, listed), {entry.key for entry, _ in listed}
        listed = _listed(store, session)
        if found is not None and before.issuperset(entry.key for entry, _ in listed):
            return found


def _listed(store: Store, session: str | None) -> list[tuple[ObjectInfo, str]]:
    entries = store.storage.list(object_keys.LEASES)
    parsed = [(entry, object_keys.parse_lease(entry.key)) for entry in entries]
    found = [(entry, key[0]) for entry, key in parsed if key and key[1] == "lease"]
    return [(entry, owner) for entry, owner in found if session in (None, owner)]


def _read(
    store: Store, listed: Iterable[tuple[ObjectInfo, str]]
) -> list[tuple[ObjectInfo, str, Lease | None]] | None:
    """Read the listed leases; return None if one of them is gone."""
    found: list[tuple[ObjectInfo, str, Lease | None]] = []
    for entry, session in listed:
        try:
            lease: Lease | None = load_lease(store.storage.get(entry.key), entry.key)
        except FileNotFoundError:
            return None
        except (DamagedError, FormatError) as error:
            logger.warning("%s: it blocks prune for a day: %s", entry.key, error)
            lease = None
        found.append((entry, session, lease))
    return found


def _join(one: SessionLease, other: SessionLease) -> SessionLease:
    """Return what two leases of a session state together. A renewal is written before the lease
    before it is removed, and one that was given up may arrive late, so both count."""
    age_s = min(one.age_s, other.age_s)
    if one.lease is None or other.lease is None:
        return SessionLease(one.session, None, age_s)
    newer, older = sorted((one.lease, other.lease), key=lambda lease: -lease.renewals)
    saving = {**newer.saving, **older.saving}
    for key in newer.saving.keys() & older.saving.keys():
        saving[key] = tuple(t for t in newer.saving[key] if t in older.saving[key])
    reading = tuple(dict.fromkeys([*newer.reading, *older.reading]))
    return SessionLease(one.session, replace(newer, saving=saving, reading=reading), age_s)


def fence(store: Store, session: str) -> list[str]:
    """Fence a session, so that it commits nothing any more; return the keys of manifests that it
    had announced.

    First the fence is written, then the announcements are read; a session announces first, then
    looks for the fence. So one of them sees the other.
    """
    store.storage.create(object_keys.fence(session), b"")
    mine = _read_all(store, session)
    announced = dict.fromkeys(key for _, _, lease in mine if lease for key in lease.saving)
    abandoned = [key for key in announced if abandon(store, key)]
    store.storage.delete(entry.key for entry, _, _ in mine)
    return abandoned


def is_fenced(store: Store, session: str) -> bool:
    """Return whether a session was fenced."""
    try:
        store.storage.get(object_keys.fence(session))
    except FileNotFoundError:
        return False
    return True


def abandon(store: Store, key: str) -> bool:
    """Put an abandoned save in the place of an announced manifest, so that it can never be
    committed; return False if it had been."""
    parsed = object_keys.parse_manifest(key)
    return parsed is not None and store.storage.create(key, build_abandoned(parsed[0]))


def blocks(held: Iterable[SessionLease], mark: str, manifests: set[str]) -> str | None:
    """Return why what the deletion mark `mark` names cannot be removed yet; None if it can.

    Args:
        held: the live leases, read after the deletion mark was written.
        mark: its key.
        manifests: keys of the existing manifests.
    """
    for other in held:
        if other.lease is None:
            return f"the lease of session {other.session} cannot be read"
        for key, marks in other.lease.saving.items():
            if mark not in marks:
                return f"{other.lease.owner} is saving {key} and began earlier"
        for key in other.lease.reading:
            if key not in manifests:
                return f"{other.lease.owner} is reading {key}"
    return None
