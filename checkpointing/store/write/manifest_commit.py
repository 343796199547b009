"""Writes part records and commits saves: a commit is the exclusive creation of the manifest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from checkpointing.errors import DamagedError, FormatError, SaveError, StoreError
from checkpointing.format.manifest import (
    MANIFEST,
    ManifestContent,
    ManifestHeader,
    assemble,
    build_manifest,
    build_part,
)
from checkpointing.format.object_keys import PACKS, SaveId, pack_key, parse_part
from checkpointing.format.object_keys import parts as part_folder
from checkpointing.format.replica_differences import RankFingerprints, describe_difference
from checkpointing.storage import ObjectInfo
from checkpointing.store.catalog import THREADS
from checkpointing.store.deletion.deletion_marks import packs_marked_for_deletion
from checkpointing.store.store import Store
from checkpointing.store.write.part_writer import WrittenPart

logger = logging.getLogger("checkpointing")

POLL_S = 0.05  # seconds between looks for other ranks' parts; doubled up to MAX_POLL_S
MAX_POLL_S = 2.0


class MixedReplicasError(SaveError):
    """A save in which replicas differ between ranks so that a tensor would be a mixture of them."""


def write_part(
    store: Store,
    header: ManifestHeader,
    rank: int,
    written: WrittenPart,
    replicas: RankFingerprints | None = None,
) -> None:
    """Write the part record of a rank durably. After this, other processes may commit.

    Args:
        replicas: fingerprints of what other ranks hold too, to be compared with theirs.
    """
    record = build_part(ManifestContent(header, written.tables, written.packs, replicas), rank)
    if not store.storage.create(header.save.part(rank), record):
        raise SaveError(f"{header.save.id}: rank {rank} already has another part record")


def having_parts(store: Store, save: SaveId, ranks: Collection[int]) -> set[int]:
    """Return those of `ranks` that have nothing left to write, because their parts exist or the
    save is committed: for a writer that was started again in the middle of a save."""
    keys = {entry.key for entry in part_entries(store, save)}
    found = {rank for rank in ranks if save.part(rank) in keys}
    # Read after the parts, which the commit removes.
    return set(ranks) if found != set(ranks) and _committed(store, save) else found


def part_entries(store: Store, save: SaveId) -> list[ObjectInfo]:
    """Return the part records of a save that exist."""
    listed = store.storage.list(part_folder(save.run))
    return [e for e in listed if (parsed := parse_part(e.key)) and parsed[0] == save]


def parts(store: Store, save: SaveId) -> dict[int, ManifestContent]:
    """Return the parts that exist, by rank.

    Raises:
        FileNotFoundError: one was removed meanwhile.
        DamagedError, FormatError: one cannot be used.
    """
    with ThreadPoolExecutor(THREADS, "parts") as pool:
        return dict(pool.map(partial(_part, store), part_entries(store, save)))


def _part(store: Store, entry: ObjectInfo) -> tuple[int, ManifestContent]:
    part = store.part(entry)
    if (part.save, part.rank) != parse_part(entry.key):
        raise DamagedError(f"{entry.key}: it is the part of rank {part.rank} of {part.save}")
    return part.rank, part.content()


def commit(
    store: Store,
    save: SaveId,
    world_size: int,
    *,
    check: Callable[[], None] = lambda: None,
    wait_s: float = 0.0,
    adopted: bool = False,
) -> ManifestContent:
    """Commit the checkpoint that consists of the parts of all ranks. May be called by any process,
    any number of times.

    Args:
        check: called last before the commit, and after it; raises SaveError if the save must not be
            committed.
        wait_s: how long to wait for missing parts, in seconds.
        adopted: the caller announced the save after its packs were chosen, so they are checked
            again.

    Returns:
        What was committed, by this call or an earlier one.

    Raises:
        SaveError: parts are missing or do not fit, or the save was abandoned.
        DamagedError, FormatError: a part cannot be used.
    """
    try:
        content = _all_parts(store, save, world_size, wait_s)
        if adopted and not _keeps_packs(store, content):
            raise SaveError(f"{save.id} has lost packs to prune, because it had already ended")
    except SaveError:
        if (done := _committed(store, save)) is not None:
            return done
        raise
    make_manifest(store, save.manifest(), content, check)
    try:
        store.storage.delete(save.part(rank) for rank in range(world_size))
    except StoreError as error:
        logger.warning("%s is committed; prune will remove its parts: %s", save.id, error)
    return content


def make_manifest(
    store: Store, key: str, content: ManifestContent, check: Callable[[], None]
) -> None:
    """Create the manifest, which is the commit itself.

    Args:
        check: of the session that announced `key`.

    Raises:
        SaveError: the session may have been fenced, or `key` is taken.
    """
    try:
        manifest = build_manifest(content)
    except ValueError as error:
        raise SaveError(f"{key} cannot be committed: {error}") from error
    check()
    if not store.storage.create(key, manifest):
        raise SaveError(
            f"{key} cannot be committed: it was declared dead or committed with other content"
        )
    try:
        check()
    except SaveError:
        # This process was suspended between the two, for so long that all may have been over: if
        # the manifest had existed and was pruned, this has brought it back without its packs. While
        # the packs exist it stays, even if they are marked for deletion: a successor may rely on
        # it. Then a sweep either finds it and spares them, or removes it after them.
        if _was_swept(store, key, content):
            store.storage.delete([key])
            raise


def check_packs(save: SaveId, content: ManifestContent, marked_packs: Collection[bytes]) -> None:
    """Check that no pack of a checkpoint is marked for deletion.

    Raises:
        SaveError: the checkpoint refers to packs that a sweep may delete at any time.
    """
    if marked := content.packs.keys() & set(marked_packs):
        raise SaveError(f"{save.id} needs {pack_key(min(marked))}, which prune may be deleting")


def _keeps_packs(store: Store, content: ManifestContent) -> bool:
    """Return whether all packs of a manifest to be created exist and will stay."""
    marked_packs = packs_marked_for_deletion(store)
    return marked_packs.isdisjoint(content.packs) and not _missing(store, content)


def _was_swept(store: Store, key: str, content: ManifestContent) -> bool:
    """Return whether packs are gone because nothing referred to them. Packs that other manifests
    refer to are missing for another reason, and can be repaired."""
    missing = _missing(store, content)
    for stored in store.manifests() if missing else ():
        if stored.key == key:
            continue
        try:
            document = store.document(stored)
            missing -= document.packs().keys() if document.kind == MANIFEST else set()
        except (FileNotFoundError, DamagedError, FormatError):
            continue
    return bool(missing)


def _missing(store: Store, content: ManifestContent) -> set[bytes]:
    there = {entry.key for entry in store.storage.list(PACKS)}
    return {pack for pack in content.packs if pack_key(pack) not in there}


def _all_parts(store: Store, save: SaveId, world_size: int, wait_s: float) -> ManifestContent:
    deadline_s, poll_s = time.monotonic() + wait_s, POLL_S
    while len(found := part_entries(store, save)) < world_size:
        if time.monotonic() >= deadline_s:
            raise SaveError(f"{save.id}: {len(found)} of {world_size} ranks have finished")
        time.sleep(poll_s)
        poll_s = min(2 * poll_s, MAX_POLL_S)
    try:
        by_rank = parts(store, save)
    except FileNotFoundError as error:
        raise SaveError(f"{save.id}: a part was removed, because it was declared dead") from error
    try:
        content = assemble([by_rank[rank] for rank in range(world_size)])
    except (KeyError, ValueError) as error:
        raise SaveError(f"{save.id}: the parts do not fit together: {error}") from error
    mark = content.header.marked
    mixed = [one for one in (mark.differences if mark else ()) if one.stored is None]
    if mixed:
        raise MixedReplicasError(
            f"{save.id} is not committed, because it would mix replicas that differ: "
            f"{describe_difference(mixed[0])}; find out why they differ, or set "
            "check_replicas=False to save each tensor from one rank"
        )
    return content


def _committed(store: Store, save: SaveId) -> ManifestContent | None:
    """Return the checkpoint if it is committed already (and the parts are removed)."""
    for stored in store.manifests(save.run):
        if stored.save == save:
            try:
                document = store.document(stored)
                return document.content() if document.kind == MANIFEST else None
            except FileNotFoundError:  # revised or pruned since
                continue
    return None
