"""A save that is killed at every single change of the store, and continued by another process under
the same session, becomes a whole checkpoint and leaves nothing else."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path

from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import SaveId
from checkpointing.retention import Last
from checkpointing.storage import Storage
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.store import catalog
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, having_parts, write_part
from checkpointing.store.write.part_writer import write
from tests.faults import crashing
from tests.faults.crashing import NEW, NEW_STEP, OTHER, RUN, Place, When, opened
from tests.services.crash_storage import CrashStorage
from tests.unit.checkpointing.store import saves

SESSION = "0a0b0c0d"
RANKS = 2
KEEP = 9  # all checkpoints: what is removed is what nobody needs
MOMENTS: tuple[When, ...] = ("before", "after")


def _save(storage: Storage) -> SaveId:
    """What each of the processes does: all that is not done yet."""
    store = Store.at(storage)
    with Session(store, RUN, session=SESSION) as session:
        save = session.begin(NEW_STEP)
        for rank in range(RANKS):
            if not having_parts(store, save, [rank]):
                mine = saves.pieces(NEW, rank, RANKS)
                made = write(store, save, mine, {}, RunChunkIndex(store, RUN).index(), saves.PLAIN)
                write_part(store, ManifestHeader(save, 1.0, RANKS), rank, made)
        commit(store, save, RANKS, check=session.check)
        session.end(save.manifest())
    return save


def _save_and_die(place: Place, kill_at: int, when: When) -> None:
    _save(CrashStorage(place.open(), kill_at, when, crashing.kill))


def _continue(place: Place) -> None:
    with opened(place) as storage:
        _save(storage)


def test_a_save_that_was_killed_is_continued_by_another_process(tmp_path: Path) -> None:
    before = MemoryStorage("memory://continued")
    crashing.populate(before)
    points = _changes(before)
    kinds = {point.rpartition("/")[0].partition("/")[0] for point in points}
    assert kinds == {"put leases", "put packs", "create runs", "delete runs", "delete leases"}
    places = {}
    for kill_at, when in product(range(len(points)), MOMENTS):
        place = Place(str(tmp_path / f"{kill_at}-{when}"), {})
        with opened(place) as storage:
            crashing.copied(before, storage)
        places[kill_at, when] = place
    deaths = [partial(_save_and_die, place, *at) for at, place in places.items()]
    assert set(crashing.run_to_death(deaths)) == {-9}
    assert set(crashing.run_to_death(partial(_continue, p) for p in places.values())) == {0}
    for (kill_at, when), place in places.items():
        with opened(place) as storage:
            _check(storage, f"killed {when} {points[kill_at]}")


def _changes(before: MemoryStorage) -> list[str]:
    """All changes that a save makes, in their order."""
    storage = MemoryStorage("memory://continued-count")
    crashing.copied(before, storage)
    counting = CrashStorage(storage, -1, "before")
    _save(counting)
    return counting.changes


def _check(storage: Storage, what: str) -> None:
    store = Store.at(storage)
    found = {f.stored.save: f for f in catalog.committed(store)[0]}
    made = found[SaveId(RUN, NEW_STEP, SESSION)]
    assert saves.contents(Checkpoint(store, made.stored)) == saves.expected(NEW), what
    assert saves.problems(store) == [], what
    for run in (RUN, OTHER) * 2:
        prune(store, run, [Last(KEEP)], grace_s=0)
    assert {f.stored.save for f in catalog.committed(store)[0]} == found.keys(), what
    assert saves.problems(store) == [], what
    assert crashing.leaks(store) == [], what
