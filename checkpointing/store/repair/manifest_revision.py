"""Publishes revisions of a checkpoint: the same tensors, with items left out or chunks in other
places.

Manifests never change. A revision is a manifest of its own, created exclusively under the next
number; the one before is removed after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from checkpointing.errors import DamagedError, FormatError, SaveError
from checkpointing.format.chunks import Chunk
from checkpointing.format.item_table import ItemTable
from checkpointing.format.manifest import MANIFEST, ManifestContent
from checkpointing.format.tiles import Box
from checkpointing.store.catalog import CatalogEntry
from checkpointing.store.deletion.deletion_marks import packs_marked_for_deletion
from checkpointing.store.deletion.manifest_removal import marking_for_deletion
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store, StoredManifest
from checkpointing.store.write.manifest_commit import check_packs, make_manifest


def publish(
    store: Store,
    session: Session,
    found: CatalogEntry,
    change: Callable[[ManifestContent], ManifestContent],
) -> str:
    """Publish the next revision of a checkpoint, then remove the one that it was made from, unless
    another session reads it; return the new one's key.

    Args:
        session: the caller's session, which holds the lease meanwhile.
        change: returns the new content; the packs that it writes are written between the
            announcement and the commit.

    Raises:
        SaveError: another process has revised or removed the checkpoint, or a sweep is deleting
            what it needs.
        FileNotFoundError: it was removed.
        DamagedError, FormatError: it cannot be read.
    """
    save = found.stored.save
    number = _next_revision(store, found)
    key = save.manifest(number)
    session.announce(key)
    try:
        # In the order of every save: first the announcement, then the deletion marks, then what
        # exists.
        marked_packs = packs_marked_for_deletion(store)
        if _next_revision(store, found) != number:
            raise SaveError(f"{save.id} was revised by another process at the same time")
        content = change(found.document.content())
        content = replace(content, header=replace(content.header, revision=number))
        check_packs(save, content, marked_packs)
        make_manifest(store, key, content, session.check)
    finally:
        session.end(key)
    with marking_for_deletion(store, [found.stored.key], by=session.id) as removal:
        if not removal.why_needed(save):
            removal.remove(save)
    return key


def drop_items(content: ManifestContent, keep: tuple[str, ...]) -> ManifestContent:
    """Return the content with these items only."""
    dropped = tuple(sorted(set(content.items) - set(keep)))
    items = {name: table for name, table in content.items.items() if name in keep}
    header = replace(content.header, dropped=tuple(sorted({*content.header.dropped, *dropped})))
    return with_packs(ManifestContent(header, items, content.packs))


def replace_chunks(
    content: ManifestContent, change: Callable[[Chunk], Chunk], packs: dict[bytes, int]
) -> ManifestContent:
    """Return the content with every chunk of a tensor changed; `packs` has the sizes
    of packs that are added."""
    items = {}
    for name, table in content.items.items():
        chunks: dict[str, Mapping[Box, Chunk]] = {
            tensor: {box: change(chunk) for box, chunk in placed.items()}
            for tensor, placed in table.chunks.items()
        }
        items[name] = ItemTable(table.tensors, chunks, table.values)
    return with_packs(ManifestContent(content.header, items, {**content.packs, **packs}))


def with_packs(content: ManifestContent) -> ManifestContent:
    """Return the content with only the packs that it refers to."""
    used = {pack for table in content.items.values() for pack in table.packs()}
    return replace(content, packs={p: content.packs[p] for p in sorted(used)})


def _next_revision(store: Store, found: CatalogEntry) -> int:
    """Return the number of the next revision.

    Raises:
        SaveError: the checkpoint was revised or removed since it was found.
    """
    save = found.stored.save
    there = [s for s in store.manifests(save.run) if s.save == save]  # the last one first
    if found.stored.key not in {stored.key for stored in there}:
        raise SaveError(f"{save.id} no longer exists: it was revised or removed")
    later = [stored for stored in there if stored.revision > found.stored.revision]
    if any(_is_manifest(store, stored) for stored in later):
        raise SaveError(f"{save.id} was revised by another process")
    return 1 + there[0].revision


def _is_manifest(store: Store, stored: StoredManifest) -> bool:
    try:
        return store.document(stored).kind == MANIFEST
    except (FileNotFoundError, DamagedError, FormatError):
        return False  # an abandoned save replaces nothing
