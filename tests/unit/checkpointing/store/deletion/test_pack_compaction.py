"""Compaction copies what is needed, for whoever needs it, and frees the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing import DamagedError, Last
from checkpointing.format.object_keys import SaveId, pack_key
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.deletion.pack_compaction import choose, compact
from checkpointing.store.deletion.pack_sweep import sweep
from checkpointing.store.store import Store
from tests.unit.checkpointing.store import delta_stores as r


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def pack_bytes(store: Store) -> int:
    return sum(entry.size for entry in store.storage.list("packs/"))


def test_the_choice_is_by_the_dead_share() -> None:
    packs = {b"full": (100, 100), b"edge": (100, 70), b"over": (100, 69), b"dead": (100, 10)}
    assert choose(packs, 0.3) == {b"over", b"dead"}
    assert choose(packs, 0.0) == {b"edge", b"over", b"dead"}
    assert choose({}, 0.0) == set()


@given(
    st.dictionaries(
        st.binary(min_size=1, max_size=2),
        st.tuples(st.integers(1, 1000), st.integers(0, 1000)),
        max_size=9,
    ),
    st.floats(0, 0.99),
    st.floats(0, 0.99),
)
def test_a_lower_threshold_never_takes_fewer(
    packs: dict[bytes, tuple[int, int]], a: float, b: float
) -> None:
    assert choose(packs, max(a, b)) <= choose(packs, min(a, b))


def thinned(store: Store) -> tuple[SaveId, r.Tensors]:
    """One checkpoint that needs a sixth of the pack of another, which is gone."""
    first = {f"model/{i}": r.tensor(i) for i in range(6)}
    r.save(store, "run", 1, first)
    state = {"model/0": first["model/0"], "model/new": r.tensor(50)}
    made = r.save(store, "run", 2, state)
    prune(store, "run", [Last(1)], grace_s=0)
    return made, state


def test_mostly_dead_packs_are_rewritten_and_freed(store: Store, tmp_path: Path) -> None:
    made, state = thinned(store)
    before, told = pack_bytes(store), list[int]()
    done = compact(store, "run", on_bytes=told.append)
    assert len(done.packs) == 1
    assert done.revisions == [made.manifest(1)]
    assert sum(told) == state["model/0"].nbytes
    assert pack_bytes(store) == before + done.written_bytes
    swept = sweep(store, grace_s=0)
    assert swept.deleted_bytes == done.freed_bytes
    assert pack_bytes(store) == before + done.written_bytes - done.freed_bytes < before / 2
    assert r.holds(tmp_path / "store", made, state)
    assert r.problems(tmp_path / "store") == []
    assert store.storage.list("leases/") == []
    assert compact(store, None).packs == []  # nothing is left to do


def test_every_run_that_needs_the_pack_is_revised(store: Store, tmp_path: Path) -> None:
    made, state = thinned(store)
    shared = {"model/0": state["model/0"]}
    other = r.save(store, "other", 7, shared)
    assert set(r.packs(store, other)) <= set(r.packs(store, made))
    done = compact(store, "run")
    assert sorted(done.revisions) == sorted([made.manifest(1), other.manifest(1)])
    sweep(store, grace_s=0)
    assert r.holds(tmp_path / "store", made, state)
    assert r.holds(tmp_path / "store", other, shared)
    assert r.problems(tmp_path / "store") == []


def test_packs_of_other_runs_alone_are_left(store: Store) -> None:
    thinned(store)
    r.save(store, "other", 1, {"model/x": r.tensor(99)})
    assert compact(store, "other").packs == []


def test_bases_move_with_what_needs_them(store: Store, tmp_path: Path) -> None:
    first = {f"model/{i}": r.tensor(i) for i in range(6)}
    r.save(store, "run", 1, first, r.DELTAS)
    state = {"model/0": r.tensor(20)}
    made = r.save(store, "run", 2, state, r.DELTAS)
    prune(store, "run", [Last(1)], grace_s=0)
    assert any(chunk.base for chunk in r.chunks(store, made))
    old = set(r.packs(store, made))
    done = compact(store, "run")
    assert len(done.packs) == 1
    assert len(old & set(r.packs(store, made))) == 1  # the delta's own pack is all alive
    sweep(store, grace_s=0)
    assert r.holds(tmp_path / "store", made, state)
    assert r.problems(tmp_path / "store") == []


def test_damage_is_not_copied(store: Store, tmp_path: Path) -> None:
    made, state = thinned(store)
    table = r.find(store, made).document.table("model")
    chunk = next(iter(table.chunks["model/0"].values()))
    r.flip(tmp_path / "store" / pack_key(chunk.pack), chunk.offset + 5)
    with pytest.raises(DamagedError, match="do not match their checksum"):
        compact(store, "run")
    assert r.find(store, made).stored.revision == 0
    assert set(state) == set(table.tensors)


def test_an_unreadable_manifest_stops_it(store: Store, tmp_path: Path) -> None:
    thinned(store)
    other = r.save(store, "other", 1, {"model/x": r.tensor(99)})
    r.flip(tmp_path / "store" / other.manifest(), 40)
    with pytest.raises(DamagedError, match=f"{other.id} of run 'other'.*repair or remove it"):
        compact(Store.open(tmp_path / "store"), "run")


def test_a_threshold_is_a_share(store: Store) -> None:
    with pytest.raises(ValueError, match="threshold must be a share"):
        compact(store, None, threshold=30)
