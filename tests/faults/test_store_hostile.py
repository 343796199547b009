"""Records in a store that name what lies outside of it: nothing there is read or removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpointing.errors import CheckpointError
from checkpointing.format import object_keys
from checkpointing.format.store_records import (
    CheckpointMark,
    DeletionMark,
    Lease,
    dump_deletion_mark,
    dump_lease,
    dump_mark,
)
from checkpointing.retention import Last
from checkpointing.storage.backend_selection import open_storage
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.deletion.pack_sweep import sweep
from checkpointing.store.store import Store
from tests.unit.checkpointing.store import saves

RUN = "gpt"
ESCAPES = ["../victim", "../../victim", "packs/../../victim", "/victim", "runs/../../victim"]


@pytest.mark.parametrize("escape", ESCAPES)
def test_nothing_outside_of_a_store_is_removed(escape: str, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "a").mkdir()
    storage = open_storage(str(tmp_path / "a/store"))
    store = Store.at(storage, create=True)
    saves.save_all(store, RUN, {1: {"model/a": 1}, 2: {"model/a": 2}})
    named = escape if not escape.startswith("/") else f"{tmp_path}{escape}"
    storage.create(
        object_keys.deletion_mark("0" * 16), dump_deletion_mark(DeletionMark((named,), (named,)))
    )
    lease = Lease("0123abcd", RUN, "me", 0.0, 0, {named: (named,)}, (named,))
    storage.create(object_keys.lease("0123abcd", 0), dump_lease(lease))
    storage.create(object_keys.mark(RUN, "best"), dump_mark(CheckpointMark(named, True, "", 0.0)))
    for _ in range(2):
        try:
            prune(store, RUN, [Last(1)], grace_s=0)
            sweep(store, grace_s=0)
        except CheckpointError:
            continue
    assert (tmp_path / "victim").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "a"}
    assert saves.problems(Store.at(storage)) == []


@pytest.mark.parametrize("escape", ESCAPES)
def test_no_key_leads_outside_of_a_store(escape: str, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    storage = open_storage(str(tmp_path / "store"))
    for use in (
        storage.get,
        lambda key: storage.get_range(key, 0, 1),
        lambda key: storage.create(key, b"x"),
        lambda key: storage.delete([key]),
    ):
        with pytest.raises(ValueError, match="object key"):
            use(escape)
    assert (tmp_path / "victim").read_text() == "mine"
