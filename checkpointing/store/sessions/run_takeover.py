"""Taking over a run from whoever was saving it: their complete saves are committed, their others
never will be."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from checkpointing.errors import CheckpointError
from checkpointing.format import object_keys
from checkpointing.store.sessions import run_ownership, session_leases
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.manifest_commit import commit, part_entries

logger = logging.getLogger("checkpointing")


@dataclass
class TakeoverResult:
    """What was found."""

    owner: int = 0  # its number: what sessions of other processes of the new owner go by
    committed: list[str] = field(default_factory=list)  # ids of saves that only lacked the commit
    abandoned: list[str] = field(default_factory=list)  # ids of saves that can never be committed
    sessions: list[str] = field(default_factory=list)  # that were ended


def take_over(store: Store, run: str) -> TakeoverResult:
    """Become the only writer of a run. Whoever saved it before fails from now on, and says so,
    also if it is not saving at this moment.

    Raises:
        StoreError: the store is out of reach.
    """
    # the owner first, then the leases: who begins a save writes its lease first, then looks at the
    # owners
    result = TakeoverResult(run_ownership.claim(store, run))
    for held in session_leases.leases(store, now=0.0):
        if held.lease is None or held.lease.run != run or not held.lease.saving:
            continue
        for key in held.lease.saving:
            if (id_ := _finish(store, key)) is not None:
                result.committed.append(id_)
        for key in session_leases.fence(store, held.session):
            parsed = object_keys.parse_manifest(key)
            if parsed is not None and parsed[1] == 0:  # else a revision, and the save is there
                result.abandoned.append(parsed[0].id)
        result.sessions.append(held.session)
    return result


def _finish(store: Store, key: str) -> str | None:
    """Commit an announced save if all its parts are there; its id if this did it."""
    parsed = object_keys.parse_manifest(key)
    if parsed is None or parsed[1] != 0:
        return None
    save = parsed[0]
    try:
        entries = part_entries(store, save)
        if not entries:
            return None
        world_size = store.part(entries[0]).header.world_size
        if len(entries) != world_size:
            return None
        with Session(store, save.run) as session:
            session.announce(key)
            commit(store, save, world_size, check=session.check, adopted=True)
    except (CheckpointError, FileNotFoundError) as error:
        logger.warning("the unfinished save %s cannot be committed: %s", save.id, error)
        return None
    return save.id
