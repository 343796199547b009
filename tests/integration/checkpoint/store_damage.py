"""Doing harm to a store in a folder, and finding out what is left."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

from checkpointing import CheckpointInfo, Store, list_checkpoints, verify
from checkpointing.format import item_table
from checkpointing.format.canonical_json import dump, load
from checkpointing.format.document_container import MAGIC, PREFIX
from checkpointing.format.object_keys import pack_key
from checkpointing.store.catalog import committed
from checkpointing.store.repair.manifest_revision import publish
from checkpointing.store.sessions.session import Session


def check(root: Path, run: str | None = None) -> dict[int, list[str]]:
    """Step of each committed checkpoint, and what is wrong with it.

    Raises:
        AssertionError: there are damaged manifests, too.
    """
    infos = list_checkpoints(root, run)
    assert not [info.problem for info in infos if info.state == "damaged"]
    return {info.step: verify(root, info) for info in committed_in(root, run)}


def committed_in(root: Path, run: str | None = None) -> list[CheckpointInfo]:
    """Those that were committed, without what unfinished saves left."""
    return [i for i in list_checkpoints(root, run) if i.state in ("committed", "partial")]


def packs_of(root: Path, info: CheckpointInfo) -> set[Path]:
    """The packs that a checkpoint refers to."""
    store = Store.open(root)
    try:
        (found,) = [f for f in committed(store, info.run)[0] if f.stored.save == info.save]
        return {root / pack_key(pack) for pack in found.document.packs()}
    finally:
        store.close()


def damage_newest(root: Path, run: str | None = None) -> None:
    """Flip a bit of the first chunk of each pack that the newest checkpoint alone refers to."""
    *older, newest = committed_in(root, run)
    packs = packs_of(root, newest).difference(*(packs_of(root, info) for info in older))
    assert packs, "the newest checkpoint has no pack of its own to damage"
    for pack in packs:
        flip_byte(pack, len(b"HPKPACK1"))


def cut_into_groups(root: Path) -> None:
    """Publish the newest checkpoint again, with a group of tensors for each tensor."""
    with (
        mock.patch.object(item_table, "GROUPED", 1),
        mock.patch.object(item_table, "_GROUP", 1),
        closing(Store.open(root)) as store,
        Session(store, "r") as session,
    ):
        newest = max(committed(store)[0], key=lambda found: found.stored)
        publish(store, session, newest, lambda content: content)
        (document,) = (store.document(s) for s in store.manifests("r") if s.revision)
        assert any(map(document.is_grouped, document.items))


def flip_byte(path: Path, offset: int) -> None:
    """Change one bit of one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def reseal(document: bytes, changes: dict[str, Any]) -> bytes:
    """A manifest with other fields in its header, under a hash that is right."""
    end = PREFIX + int.from_bytes(document[len(MAGIC) : PREFIX], "little")
    body, is_intact = load(document[PREFIX:end])
    assert is_intact
    head = dump({**body, **changes})
    return b"".join([MAGIC, len(head).to_bytes(4, "little"), head, document[end:]])
