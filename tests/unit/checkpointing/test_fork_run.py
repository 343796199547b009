"""A fork has the same tensors without a copy, and each of both keeps them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from checkpointing import CheckpointError, Last, StoreError, fork_run, list_run, verify
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.deletion.pack_sweep import sweep
from checkpointing.store.store import Store
from tests.unit.checkpointing.store.tensor_checkpoints import make


def tensors(number: int) -> dict[str, tuple[str, np.ndarray]]:
    return {"model/w": ("float32", np.full((1000, 8), number, np.float32))}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with a run of three checkpoints."""
    store = Store.open(tmp_path / "store", create=True)
    for step in (10, 20, 30):
        make(store, step, tensors(step), {"run": {"step": step}}, run="parent", ranks=2)
    store.close()
    return tmp_path / "store"


def packs(place: Path) -> dict[str, int]:
    found = (place / "packs").rglob("*.pack")
    return {path.name: path.stat().st_size for path in found}


def test_nothing_is_copied_and_the_content_is_the_same(place: Path) -> None:
    before = packs(place)
    forked = fork_run(place, "parent", "child", 20)
    assert packs(place) == before
    assert (forked.step, forked.run, forked.world_size, forked.state) == (
        20,
        "child",
        2,
        "committed",
    )
    assert forked.source == f"run parent, checkpoint {forked.id}"
    assert [info.step for info in list_run(place, "parent")] == [10, 20, 30]
    assert verify(place, forked) == []


def test_the_newest_is_taken_if_none_is_named(place: Path) -> None:
    assert fork_run(place, "parent", "child").step == 30


@pytest.mark.parametrize("gone", ["parent", "child"])
def test_either_of_both_may_go(place: Path, gone: str) -> None:
    fork_run(place, "parent", "child", 20)
    left = "child" if gone == "parent" else "parent"
    store = Store.open(place)
    for info in list_run(place, gone):
        store.storage.delete([info.key])
    for _ in range(2):  # the first one marks what the second one deletes
        sweep(store, grace_s=0.0)
    assert len(packs(place)) == (2 if gone == "parent" else 6)
    store.close()
    for info in list_run(place, left):
        assert verify(place, info) == []


def test_retention_of_the_parent_leaves_the_fork_alone(place: Path) -> None:
    forked = fork_run(place, "parent", "child", 10)
    store = Store.open(place)
    assert len(prune(store, "parent", [Last(1)], grace_s=0.0).removed) == 2
    store.close()
    assert [info.step for info in list_run(place, "parent")] == [30]
    assert verify(place, forked) == []


def test_what_is_not_there_or_is_there_is_refused(place: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 15 .* 10, 20, 30"):
        fork_run(place, "parent", "child", 15)
    with pytest.raises(CheckpointError, match=r"no checkpoint of run 'nobody'.*none"):
        fork_run(place, "nobody", "child")
    fork_run(place, "parent", "child")
    with pytest.raises(StoreError, match="already has a run 'child'"):
        fork_run(place, "parent", "child")
    with pytest.raises(ValueError, match="run name"):
        fork_run(place, "parent", "../child")
