"""Commits saves that are complete and that nobody has committed."""

from __future__ import annotations

import logging

from checkpointing.errors import DamagedError, FormatError, SaveError
from checkpointing.format.object_keys import SaveId, parse_part, parts
from checkpointing.store.sessions import session_leases
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.manifest_commit import commit, part_entries

logger = logging.getLogger("checkpointing")


def commit_orphaned_saves(store: Store, run: str) -> list[SaveId]:
    """Commit the saves of a run of which all parts exist; return those that were committed.

    Saves that a live session is working on, that were abandoned, or whose packs are marked for
    deletion or deleted are left alone.

    Raises:
        StoreError: the store is out of reach.
    """
    there = {stored.key for stored in store.manifests(run)}
    entries = store.storage.list(parts(run))
    saves = {parsed[0] for entry in entries if (parsed := parse_part(entry.key))}
    candidates = sorted(save for save in saves if save.manifest() not in there)
    announced = _announced(store)
    return [s for s in candidates if s.manifest() not in announced and _adopt(store, run, s)]


def _announced(store: Store) -> set[str]:
    """Return the keys of manifests that live sessions are making.

    Raises:
        DamagedError: a lease cannot be read, so that it is not known what its session is making.
    """
    keys: set[str] = set()
    for held in session_leases.leases(store, session_leases.storage_time(store)):
        if held.lease is None and held.is_alive:
            raise DamagedError(
                f"the lease of session {held.session} cannot be read: nothing is adopted, because "
                "the session may be saving; remove the lease if no process is"
            )
        if held.lease is not None and held.is_alive:
            keys |= held.lease.saving.keys()
    return keys


def _adopt(store: Store, run: str, save: SaveId) -> bool:
    with Session(store, run) as session:
        session.announce(save.manifest())
        try:
            entries = part_entries(store, save)
            if not entries or len(entries) != store.part(entries[0]).header.world_size:
                return False
            commit(store, save, len(entries), check=session.check, adopted=True)
        except (SaveError, DamagedError, FormatError, FileNotFoundError) as error:
            logger.warning("%s is not adopted: %s", save.id, error)
            return False
        finally:
            session.end(save.manifest())
    return True
