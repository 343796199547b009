"""Writes and reads deletion marks (`tombs/…`), the first phase of a deletion."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from checkpointing.errors import DamagedError
from checkpointing.format import object_keys
from checkpointing.format.store_records import DeletionMark, dump_deletion_mark, load_deletion_mark
from checkpointing.storage import ObjectInfo
from checkpointing.storage.key_rules import is_key
from checkpointing.store.store import Store


def write(store: Store, *, packs: Iterable[str] = (), manifests: Iterable[str] = ()) -> str:
    """Mark objects for deletion; return the key of the deletion mark."""
    key = object_keys.deletion_mark(secrets.token_hex(8))
    store.storage.create(key, dump_deletion_mark(DeletionMark(tuple(packs), tuple(manifests))))
    return key


def list_deletion_marks(store: Store) -> list[tuple[ObjectInfo, DeletionMark]]:
    """Return all deletion marks. One that cannot be read is removed: its objects can safely be
    marked again."""
    found = []
    for entry in store.storage.list(object_keys.DELETION_MARKS):
        try:
            found.append((entry, _load(store.storage.get(entry.key), entry.key)))
        except FileNotFoundError:
            continue
        except DamagedError:
            store.storage.delete([entry.key])
    return found


def _load(data: bytes, where: str) -> DeletionMark:
    """Parse a deletion mark. Only packs and manifests are accepted, because what it names is
    deleted."""
    mark = load_deletion_mark(data, where)
    for kind, keys in ((object_keys.PACKS, mark.packs), (object_keys.RUNS, mark.manifests)):
        if wrong := [key for key in keys if not (key.startswith(kind) and is_key(key))]:
            raise DamagedError(
                f"{where}: marks {wrong[0]!r} for deletion, which is not an object of its kind"
            )
    return mark


def marked_for_deletion(store: Store) -> set[str]:
    """Return the keys of all manifests that a prune is removing."""
    return {key for _, mark in list_deletion_marks(store) for key in mark.manifests}


def packs_marked_for_deletion(store: Store) -> set[bytes]:
    """Return the packs that a sweep may delete at any time: nothing new may refer to them."""
    keys = (key for _, mark in list_deletion_marks(store) for key in mark.packs)
    return {pack for key in keys if (pack := object_keys.parse_pack(key)) is not None}
