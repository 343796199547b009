"""A restore lists the checkpoints of its run once, and once more to confirm it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from checkpointing import Checkpointer, Store
from checkpointing.format.object_keys import SaveId
from checkpointing.restore import store_restore
from checkpointing.restore.node_manifest import NodeManifest
from checkpointing.store.catalog import Catalog, read_catalog
from checkpointing.store.checkpoint import Checkpoint
from tests.integration.checkpoint.single_process_saves import die, restore_one
from tests.integration.checkpoint.store_damage import cut_into_groups
from tests.integration.rank_worlds import Recorder
from tests.integration.service.running_services import wait_until_ended
from tests.services.s3 import S3Place
from tests.unit.checkpointing.store.recording_storage import ListCounter

ONCE = {"runs/r/steps/": 2, "runs/r/owners/": 1, "leases/": 2}
"""Steps and leases are listed a second time because a listing beside a renewal may miss both the
old and the new object."""


@pytest.fixture(params=["posix", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Mapping[str, Any]]:
    """The URL of a store, and its options."""
    if request.param == "posix":
        return str(tmp_path / "store"), {}
    s3: S3Place = request.getfixturevalue("s3_url")
    return s3.url, s3.options


def state_of(value: float) -> dict[str, Any]:
    return {"w": torch.full((1000,), value)}


def listings_of_a_restore(root: str, options: Mapping[str, Any]) -> tuple[int | None, Counter[str]]:
    """The restored step, and how often each prefix was listed for it."""
    ckpt = Checkpointer(root, run="r", options=options)
    counter = ListCounter(ckpt._store.storage)
    ckpt._store.storage = counter
    step = ckpt.restore(state_of(0.0))
    found = Counter(counter.listed)
    ckpt.close()
    return step, found


def test_a_new_run(place: tuple[str, Mapping[str, Any]]) -> None:
    assert listings_of_a_restore(*place) == (None, ONCE)


def test_from_the_store(place: tuple[str, Mapping[str, Any]]) -> None:
    root, options = place
    ckpt = Checkpointer(root, run="r", options=options)
    for step in (1, 2):
        ckpt.save(step, state_of(float(step)))
        ckpt.wait()
    ckpt.close()
    wait_until_ended(root)
    assert listings_of_a_restore(*place) == (2, ONCE)


def test_from_memory_the_takeover_is_between_two_readings(
    place: tuple[str, Mapping[str, Any]],
) -> None:
    root, options = place
    ckpt = Checkpointer(root, run="r", options=options)
    ckpt.save(1, state_of(1.0))
    ckpt.wait()
    die(ckpt)
    assert listings_of_a_restore(*place) == (1, {**ONCE, "runs/r/steps/": 3})


def test_a_checkpoint_that_is_revised_after_the_listing_is_restored(tmp_path: Path) -> None:
    root = tmp_path / "store"
    ckpt = Checkpointer(root, run="r")
    for step in (1, 2):
        ckpt.save(step, state_of(float(step)))
        ckpt.wait()
    ckpt.close()
    wait_until_ended(root)
    revised: list[SaveId] = []

    def read_and_revise(store: Store, run: str, **options: Any) -> Catalog:
        catalog = read_catalog(store, run, **options)
        if not revised:
            stored = catalog.entries[0].stored
            store.storage.create(stored.save.manifest(1), store.storage.get(stored.key))
            store.storage.delete([stored.key])
            store.forget(stored.key)
            revised.append(stored.save)
        return catalog

    state = state_of(0.0)
    with mock.patch.object(store_restore, "read_catalog", read_and_revise):
        assert restore_one(root, state) == 2
    assert [save.step for save in revised] == [2]
    assert torch.equal(state["w"], state_of(2.0)["w"])


def test_a_checkpoint_that_is_revised_before_its_groups_are_read_is_restored(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    ckpt = Checkpointer(root, run="r")
    for step in (1, 2):
        ckpt.save(step, state_of(float(step)))
        ckpt.wait()
    ckpt.close()
    wait_until_ended(root)
    cut_into_groups(root)
    revised: list[SaveId] = []

    def revise(self: NodeManifest, checkpoint: Checkpoint, tensors: Any) -> None:
        if not revised:
            store, stored = checkpoint.store, checkpoint.stored
            key = stored.save.manifest(stored.revision + 1)
            store.storage.create(key, store.storage.get(stored.key))
            store.storage.delete([stored.key])
            revised.append(stored.save)

    state, events = state_of(0.0), Recorder()
    with mock.patch.object(NodeManifest, "share_groups", revise):
        ckpt = Checkpointer(root, run="r", on_event=events)
        assert ckpt.restore(state) == 2
        ckpt.close()
    assert [save.step for save in revised] == [2]
    assert torch.equal(state["w"], state_of(2.0)["w"])
    assert "checkpoint_skipped" not in events.kinds()
