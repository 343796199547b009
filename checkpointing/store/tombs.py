"""Tombs: the first phase of a deletion."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from checkpointing.errors import DamagedError
from checkpointing.format import names
from checkpointing.format.records import Tomb, dump_tomb, load_tomb
from checkpointing.storage import Entry
from checkpointing.storage.keys import is_key
from checkpointing.store.store import Store


def write(store: Store, *, packs: Iterable[str] = (), manifests: Iterable[str] = ()) -> str:
    """Condemn objects; the tomb's key."""
    key = names.tomb(secrets.token_hex(8))
    store.storage.create(key, dump_tomb(Tomb(tuple(packs), tuple(manifests))))
    return key


def tombs(store: Store) -> list[tuple[Entry, Tomb]]:
    """All tombs. One that cannot be read is removed: it is safe to condemn anew."""
    found = []
    for entry in store.storage.list(names.TOMBS):
        try:
            found.append((entry, _load(store.storage.get(entry.key), entry.key)))
        except FileNotFoundError:
            continue
        except DamagedError:
            store.storage.delete([entry.key])
    return found


def _load(data: bytes, where: str) -> Tomb:
    """Only of what may be condemned: what a tomb names is deleted."""
    tomb = load_tomb(data, where)
    for kind, keys in ((names.PACKS, tomb.packs), (names.RUNS, tomb.manifests)):
        if wrong := [key for key in keys if not (key.startswith(kind) and is_key(key))]:
            raise DamagedError(f"{where}: condemns {wrong[0]!r}, which is no object of its kind")
    return tomb


def condemned(store: Store) -> set[str]:
    """Keys of all manifests that a prune is removing."""
    return {key for _, tomb in tombs(store) for key in tomb.manifests}


def condemned_packs(store: Store) -> set[bytes]:
    """Packs that a prune may delete at any time: nothing new may refer to them."""
    keys = (key for _, tomb in tombs(store) for key in tomb.packs)
    return {pack for key in keys if (pack := names.parse_pack(key)) is not None}
