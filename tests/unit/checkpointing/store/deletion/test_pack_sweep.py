"""What a sweep removes, when, and what it has to wait for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkpointing.errors import SaveError
from checkpointing.format import object_keys
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import SaveId
from checkpointing.retention import Last
from checkpointing.store import catalog
from checkpointing.store.deletion import deletion_marks
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.deletion.pack_sweep import FENCED_S, TEMPORARY_S, sweep
from checkpointing.store.sessions import session_leases
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import write
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.saves import Values
from tests.unit.checkpointing.store.schedules.model_storage import ModelStorage, World
from tests.unit.checkpointing.store.schedules.scheduler import Scheduler

RUN = "a"
TTL_S = 600.0
V: Values = {"model/w": 1}
W: Values = {"model/w": 2}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def store(world: World) -> Store:
    return Store.at(ModelStorage(world, Scheduler()), create=True)


def _unfinished(
    session: Session, step: int = 1, values: Values = V, *, part: bool = True
) -> SaveId:
    """A save that lacks the commit, and maybe its part."""
    store, save = session.store, session.begin(step)
    index = RunChunkIndex(store, session.run).index()
    written = write(store, save, saves.pieces(values), {}, index, saves.PLAIN)
    if part:
        write_part(store, ManifestHeader(save, 1.0, 1), 0, written)
    return save


def _keys(store: Store, prefix: str) -> list[str]:
    return [entry.key for entry in store.storage.list(prefix)]


def test_a_live_sessions_packs_and_parts_stay(store: Store) -> None:
    with Session(store, RUN) as session:
        save = _unfinished(session)
        swept = sweep(store, grace_s=0)
        assert (swept.condemned, swept.deleted, swept.ended) == (0, 0, [])
        commit(store, save, 1, check=session.check)
    assert saves.problems(store) == []


def test_a_dead_sessions_packs_and_parts_go(store: Store, world: World) -> None:
    with Session(store, RUN) as session:
        save = _unfinished(session)
        world.now += TTL_S + 1
        swept = sweep(store, grace_s=0)
        assert (swept.condemned, swept.deleted, swept.ended) == (1, 1, [session.id])
        assert swept.deleted_bytes > 0
        with pytest.raises(SaveError):
            commit(store, save, 1)
        assert _keys(store, object_keys.PACKS) == []
        assert _keys(store, object_keys.DELETION_MARKS) == []
        assert _keys(store, f"runs/{RUN}/parts/") == []
        assert catalog.committed(store)[0] == []


def test_a_failed_saves_leftovers_go_though_the_session_lives(store: Store) -> None:
    with Session(store, RUN) as session:
        save = _unfinished(session)
        session.end(save.manifest())
        sweep(store, grace_s=0)
        assert _keys(store, object_keys.PACKS) == []
        assert _keys(store, f"runs/{RUN}/parts/") == []
        with pytest.raises(SaveError):
            commit(store, save, 1)
        saves.save(session, [RunChunkIndex(store, RUN)], 2, V)  # the session may go on
    assert saves.problems(store) == []


def test_condemned_packs_wait_for_the_grace_period(store: Store, world: World) -> None:
    saves.save_all(store, RUN, {1: V, 2: W})
    prune(store, RUN, [Last(1)], grace_s=60)
    first = sweep(store, grace_s=60)
    assert first.deleted == 0
    assert "the grace period is 60 s" in next(iter(first.waiting.values()))
    world.now += 61
    assert sweep(store, grace_s=60).deleted == 1
    assert saves.problems(store) == []


def test_a_save_that_began_before_holds_up_the_burial(store: Store) -> None:
    saves.save_all(store, RUN, {1: V})
    with Session(store, "b") as session:
        save = _unfinished(session, 1, V)  # refers to the pack of step 1
        saves.save_all(store, RUN, {2: W})
        swept = prune(store, RUN, [Last(1)], grace_s=0).swept
        assert swept is not None
        assert (swept.condemned, swept.deleted) == (1, 0)
        assert "began earlier" in next(iter(swept.waiting.values()))
        commit(store, save, 1, check=session.check)
    swept = sweep(store, grace_s=0)
    assert swept.deleted == 0  # now it is needed, and the tomb is over
    assert _keys(store, object_keys.DELETION_MARKS) == []
    assert saves.problems(store) == []


def test_a_save_that_began_afterwards_does_not(store: Store) -> None:
    saves.save_all(store, RUN, {1: V, 2: W})
    with Session(store, "b") as first:
        _unfinished(first, 1, W)
        prune(store, RUN, [Last(1)], grace_s=0)
        with Session(store, "c") as second:
            later = _unfinished(second, 1, V)
            first.close()
            assert sweep(store, grace_s=0).deleted == 1
            commit(store, later, 1, check=second.check)
    assert saves.problems(store) == []


def test_an_unreadable_manifest_stops_the_sweep(store: Store, world: World) -> None:
    first, _ = saves.save_all(store, RUN, {1: V, 2: W})
    saves.save_all(store, "b", {1: {"model/w": 9}, 2: W})
    world.objects[first.manifest()] = (b"damaged", world.now)
    fresh = Store.at(store.storage)
    result = prune(fresh, "b", [Last(1)], grace_s=0)
    assert len(result.removed) == 1
    assert result.swept is not None
    assert set(result.swept.unreadable) == {first.manifest()}
    assert result.swept.condemned == 0
    assert len(_keys(store, object_keys.PACKS)) == 4


def test_an_unreadable_lease_stops_the_burial_for_a_day(store: Store, world: World) -> None:
    saves.save_all(store, RUN, {1: V, 2: W})
    key = object_keys.lease("0a0b0c0d", 1)
    world.objects[key] = (b"damaged", world.now)
    result = prune(store, RUN, [Last(1)], grace_s=0)
    assert "cannot be read" in next(iter(result.spared.values()))
    world.now += session_leases.UNREADABLE_S + 1
    result = prune(store, RUN, [Last(1)], grace_s=0)
    assert result.swept is not None
    assert (result.swept.deleted, result.swept.ended) == (1, ["0a0b0c0d"])
    assert key not in world.objects
    assert saves.problems(store) == []


def test_a_damaged_tomb_is_condemned_anew(store: Store, world: World) -> None:
    with Session(store, RUN) as session:
        save = _unfinished(session)
        session.end(save.manifest())
        tomb = deletion_marks.write(store, packs=_keys(store, object_keys.PACKS))
        world.objects[tomb] = (b"damaged", world.now)
    assert sweep(store, grace_s=0).deleted == 1
    assert _keys(store, object_keys.DELETION_MARKS) == []


def test_a_tomb_ends_with_the_last_manifest_that_it_condemns(store: Store) -> None:
    there, gone = saves.save_all(store, RUN, {1: V, 2: W})
    keys = [save.manifest() for save in (there, gone)]
    tomb = deletion_marks.write(store, manifests=keys)
    store.storage.delete([gone.manifest()])
    sweep(store, grace_s=0)
    assert _keys(store, object_keys.DELETION_MARKS) == [tomb]
    store.storage.delete([there.manifest()])
    for key in keys:
        assert session_leases.abandon(store, key)  # what stands in its place needs no tomb
    sweep(store, grace_s=0)
    assert _keys(store, object_keys.DELETION_MARKS) == []


def test_fences_and_abandoned_saves_go_after_a_week(store: Store, world: World) -> None:
    with Session(store, RUN) as session:
        _unfinished(session)
        world.now += TTL_S + 1
        sweep(store, grace_s=0)
    assert _keys(store, object_keys.LEASES) == [object_keys.fence(session.id)]
    assert len(store.manifests(RUN)) == 1
    world.now += FENCED_S - 1
    sweep(store, grace_s=0)
    assert len(store.manifests(RUN)) == 1
    world.now += 2
    sweep(store, grace_s=0)
    assert _keys(store, "") == [object_keys.STORE]


def test_a_second_sweep_changes_nothing(store: Store, world: World) -> None:
    saves.save_all(store, RUN, {1: V, 2: W})
    prune(store, RUN, [Last(1)], grace_s=0)
    before = dict(world.objects)
    swept = sweep(store, grace_s=0)
    assert world.objects == before
    assert (swept.condemned, swept.deleted) == (0, 0)


def test_half_written_files_go_after_a_day(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    saves.save_all(store, RUN, {1: V})
    folder = next((tmp_path / "store" / "packs").iterdir())
    old, new = (folder / f".x.pack.{digit * 16}.tmp" for digit in "ab")
    for path in (old, new):
        path.write_bytes(b"half")
    long_ago = old.stat().st_mtime - TEMPORARY_S - 60
    os.utime(old, (long_ago, long_ago))
    sweep(store, grace_s=0)
    assert not old.exists()
    assert new.exists()
    assert saves.problems(store) == []
