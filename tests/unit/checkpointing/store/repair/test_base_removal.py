"""Flattened checkpoints need no base, and are what they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpointing import DamagedError, Last
from checkpointing.codec import Codec
from checkpointing.format.object_keys import SaveId, pack_key
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.deletion.pack_sweep import sweep
from checkpointing.store.repair.base_removal import flatten
from checkpointing.store.store import Store
from tests.unit.checkpointing.store import delta_stores as r


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def chain(store: Store) -> list[tuple[SaveId, r.Tensors]]:
    """Three checkpoints, each a delta to the one before."""
    states = [{"model/a": r.tensor(s), "model/b": r.tensor(s + 10, 8)} for s in range(3)]
    return [(r.save(store, "run", i, state, r.DELTAS), state) for i, state in enumerate(states)]


def test_a_chain_becomes_self_contained(store: Store, tmp_path: Path) -> None:
    made, state = chain(store)[-1]
    assert max(chunk.depth for chunk in r.chunks(store, made)) == 2
    told: list[int] = []
    key = flatten(store, "run", r.find(store, made), told.append)
    assert key == made.manifest(1)
    assert {chunk.depth for chunk in r.chunks(store, made)} == {0}
    assert {chunk.codec for chunk in r.chunks(store, made)} <= {Codec.RAW, Codec.PLANES}
    assert sum(told) == sum(array.nbytes for array in state.values())
    assert r.holds(tmp_path / "store", made, state)
    assert r.problems(tmp_path / "store") == []
    assert not (tmp_path / "store" / made.manifest()).exists()
    assert store.storage.list("leases/") == []


def test_what_it_was_relative_to_can_go(store: Store, tmp_path: Path) -> None:
    made, state = chain(store)[-1]
    flatten(store, "run", r.find(store, made))
    swept = prune(store, "run", [Last(1)], grace_s=0).swept
    assert swept is not None
    assert swept.deleted == 3  # of the two bases, and of the deltas
    assert r.holds(tmp_path / "store", made, state)
    assert r.problems(tmp_path / "store") == []


def test_without_bases_nothing_is_made(store: Store) -> None:
    made = r.save(store, "run", 1, {"model/a": r.tensor(1)})
    before = store.storage.list("")
    assert flatten(store, "run", r.find(store, made)) == made.manifest()
    assert [entry.key for entry in store.storage.list("")] == [entry.key for entry in before]


def test_damage_leaves_it_as_it_was(store: Store, tmp_path: Path) -> None:
    made, _ = chain(store)[-1]
    base = next(chunk for chunk in r.chunks(store, made) if chunk.depth == 0)
    r.flip(tmp_path / "store" / pack_key(base.pack), base.offset)
    with pytest.raises(DamagedError, match=r"cannot be rewritten without bases: .*repair it first"):
        flatten(store, "run", r.find(store, made))
    assert r.find(store, made).stored.revision == 0
    assert sweep(store, grace_s=0).condemned == 0  # nothing was left behind


def test_a_checkpoint_that_was_removed_does_not_come_back(store: Store) -> None:
    made, _ = chain(store)[-1]
    found = r.find(store, made)
    found.document.content()
    store.storage.delete([found.stored.key])
    with pytest.raises(FileNotFoundError, match="was removed, or prune is removing it"):
        flatten(store, "run", found)
    assert not [s for s in store.manifests("run") if s.save == made]
    assert store.storage.list("leases/") == []
