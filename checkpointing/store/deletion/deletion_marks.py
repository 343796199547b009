"""Tombs: the first phase of a deletion."""

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
    """Condemn objects; the tomb's key."""
    key = object_keys.deletion_mark(secrets.token_hex(8))
    store.storage.create(key, dump_deletion_mark(DeletionMark(tuple(packs), tuple(manifests))))
    return key


def list_deletion_marks(store: Store) -> list[tuple[ObjectInfo, DeletionMark]]:
    """All tombs. One that cannot be read is removed: it is safe to condemn anew."""
    found = []
    for entry in store.storage.list(object_keys.TOMBS):
        try:
            found.append((entry, _load(store.storage.get(entry.key), entry.key)))
        except FileNotFoundError:
            continue
        except DamagedError:
            store.storage.delete([entry.key])
    return found


def _load(data: bytes, where: str) -> DeletionMark:
    """Only of what may be condemned: what a tomb names is deleted."""
    tomb = load_deletion_mark(data, where)
    for kind, keys in ((object_keys.PACKS, tomb.packs), (object_keys.RUNS, tomb.manifests)):
        if wrong := [key for key in keys if not (key.startswith(kind) and is_key(key))]:
            raise DamagedError(f"{where}: condemns {wrong[0]!r}, which is no object of its kind")
    return tomb


def marked_for_deletion(store: Store) -> set[str]:
    """Keys of all manifests that a prune is removing."""
    return {key for _, tomb in list_deletion_marks(store) for key in tomb.manifests}


def packs_marked_for_deletion(store: Store) -> set[bytes]:
    """Packs that a prune may delete at any time: nothing new may refer to them."""
    keys = (key for _, tomb in list_deletion_marks(store) for key in tomb.packs)
    return {pack for key in keys if (pack := object_keys.parse_pack(key)) is not None}
