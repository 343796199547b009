"""Lets the nodes of a job agree on a save through the store alone: the node with rank 0 announces
it, the others look for the announcement, and later for the outcome."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum

from checkpointing.errors import CheckpointError, DamagedError, FormatError
from checkpointing.format import object_keys
from checkpointing.format.manifest import MANIFEST
from checkpointing.format.object_keys import SaveId
from checkpointing.format.store_records import Lease, load_lease
from checkpointing.service.session_names import AHEAD, session_id
from checkpointing.service.snapshots import Generation
from checkpointing.store.sessions import session_leases
from checkpointing.store.store import Store

logger = logging.getLogger("checkpointing")


class SaveFate(Enum):
    """The outcome of a save."""

    COMMITTED = "committed"
    ABANDONED = "abandoned"


def _epochs(generation: Generation, first: int, end: int) -> dict[str, int]:
    """Return the epochs from `first` to before `end`, by session name."""
    return {session_id(generation, epoch): epoch for epoch in range(first, end)}


def last_epoch(store: Store, run: str, generation: Generation) -> int:
    """Return the epoch to continue with, for a service that was started again.

    Raises:
        StoreError: the store is out of reach.
    """
    listed = store.storage.list(object_keys.LEASES)
    used = {parsed[0] for entry in listed if (parsed := object_keys.parse_lease(entry.key))}
    used |= {stored.save.session for stored in store.manifests(run)}
    last = -1
    while True:
        epochs = _epochs(generation, last + 1, last + 1 + AHEAD)
        found = [epochs[session] for session in used & epochs.keys()]
        if not found:
            return max(last, 0)
        last = max(found)


@dataclass(frozen=True, order=True)
class AnnouncedSave:
    """A save that is under way."""

    epoch: int
    save: SaveId


def announced(
    store: Store, run: str, generation: Generation, epoch: int = 0
) -> AnnouncedSave | None:
    """Return the newest save that the generation's rank 0 has announced and not ended; None if
    there is none now.

    Args:
        epoch: the last known one.

    Raises:
        StoreError: the store is out of reach.
    """
    epochs = _epochs(generation, epoch, epoch + AHEAD)
    entries = store.storage.list(object_keys.LEASES)
    parsed = [(entry.key, object_keys.parse_lease(entry.key)) for entry in entries]
    mine = [(key, *found) for key, found in parsed if found and found[0] in epochs]
    fenced = {session for _, session, kind in mine if kind == "fence"}
    saves: set[AnnouncedSave] = set()
    for key, session, kind in mine:
        if kind == "lease" and session not in fenced and (lease := _read(store, key)):
            saves |= {AnnouncedSave(epochs[session], save) for save in _saving(lease, run)}
    return max(saves, default=None)


def announced_instead(
    store: Store, generation: Generation, save: SaveId, epoch: int
) -> AnnouncedSave | None:
    """Return the save of the same or a later step that was announced after `save`, which no node
    makes any longer then; None if there is none. Arguments and errors are those of `announced`."""
    now = announced(store, save.run, generation, epoch)
    return now if now is not None and now.save != save and now.save.step >= save.step else None


def _read(store: Store, key: str) -> Lease | None:
    try:
        return load_lease(store.storage.get(key), key)
    except FileNotFoundError:  # renewed meanwhile: the next look finds it
        return None
    except (DamagedError, FormatError) as error:
        logger.warning("%s", error)
        return None


def _saving(lease: Lease, run: str) -> list[SaveId]:
    parsed = [object_keys.parse_manifest(key) for key in lease.saving]
    return [found[0] for found in parsed if found and found[0].run == run and found[1] == 0]


def is_announced(store: Store, save: SaveId) -> bool:
    """Return whether a session still intends to commit the save. To be called before
    `fate_of_save`: a leader commits first and then withdraws the announcement.

    Raises:
        StoreError: the store is out of reach.
    """
    _, held = session_leases.of_session(store, save.session)
    return held is not None and (held.lease is None or save.manifest() in held.lease.saving)


def fate_of_save(store: Store, save: SaveId) -> SaveFate | None:
    """Return the outcome of an announced save; None while there is none.

    Raises:
        StoreError: the store is out of reach.
    """
    for stored in store.manifests(save.run):
        if stored.save != save:
            continue
        try:
            kind = store.document(stored).kind
        except FileNotFoundError:  # revised or pruned since, so it was committed
            return SaveFate.COMMITTED
        except CheckpointError as error:
            logger.warning("%s", error)
            continue
        return SaveFate.COMMITTED if kind == MANIFEST else SaveFate.ABANDONED
    return None


def newest_committed(
    store: Store, run: str, generation: Generation, epoch: int = 0
) -> AnnouncedSave | None:
    """Return the generation's newest save that is a checkpoint, for a node that has missed its
    commit.

    Args:
        epoch: the last known one.

    Raises:
        StoreError: the store is out of reach.
    """
    epochs = _epochs(generation, 0, epoch + AHEAD)
    mine = {s.save for s in store.manifests(run) if s.save.session in epochs}
    for save in sorted(mine, key=lambda save: save.step, reverse=True):
        if fate_of_save(store, save) is SaveFate.COMMITTED:
            return AnnouncedSave(epochs[save.session], save)
    return None
