"""Takes over a run from the processes that were saving it: their complete saves are committed, all
others are abandoned."""

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
    """The result of a takeover."""

    # number of the owner, to be passed to sessions of other processes of the new owner
    owner: int = 0
    committed: list[str] = field(default_factory=list)  # ids of saves that only lacked the commit
    abandoned: list[str] = field(default_factory=list)  # ids of saves that can never be committed
    sessions: list[str] = field(default_factory=list)  # sessions that were fenced


def take_over(store: Store, run: str) -> TakeoverResult:
    """Become the only writer of a run. Any former owner fails with an error from now on, even if it
    is not saving at this moment.

    Raises:
        StoreError: the store is out of reach.
    """
    # First the owner, then the leases: a session that begins a save writes its lease first, then
    # looks at the owners.
    result = TakeoverResult(run_ownership.claim(store, run))
    for held in session_leases.leases(store, now=0.0):
        if held.lease is None or held.lease.run != run or not held.lease.saving:
            continue
        for key in held.lease.saving:
            if (id_ := _finish(store, key)) is not None:
                result.committed.append(id_)
        for key in session_leases.fence(store, held.session):
            parsed = object_keys.parse_manifest(key)
            # otherwise it is a revision, and the save is committed
            if parsed is not None and parsed[1] == 0:
                result.abandoned.append(parsed[0].id)
        result.sessions.append(held.session)
    return result


def _finish(store: Store, key: str) -> str | None:
    """Commit an announced save if all its parts exist; return its id if this call committed it."""
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
