"""Invariants 3 and 8: whatever is damaged, in whatever way, no wrong byte reaches a tensor, nothing
else happens than an error that says so, and verification finds it."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations

import pytest

from checkpointing.errors import CheckpointError, DamagedError, FormatError, SaveError
from checkpointing.format import object_keys
from checkpointing.format.chunks import Chunk
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import SaveId
from checkpointing.retention import Last
from checkpointing.storage import Buffer
from checkpointing.store import catalog, pins_and_labels
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.deletion.pack_sweep import sweep
from checkpointing.store.inspection.integrity_check import Level, verify
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, write
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.object_damage import (
    PLACES,
    Harm,
    Objects,
    harmed,
    harms,
    look,
    snapshot,
    storage_of,
    store_of,
)
from tests.unit.checkpointing.store.saves import Values

RUN = "a"
STEPS: dict[int, Values] = {  # the second one shares half of its chunks with the first
    1: {"model/a": 1, "model/b": 2, "optim/a": 3, "optim/b": 4},
    2: {"model/a": 1, "model/b": 12, "optim/a": 3, "optim/b": 14},
}
MIB = 1 << 20


@pytest.fixture(scope="module")
def made() -> tuple[Objects, list[SaveId]]:
    """A store with two checkpoints, one of them pinned."""
    storage = storage_of({})
    store = Store.at(storage, create=True)
    with Session(store, RUN) as session:
        known = [RunChunkIndex(store, RUN) for _ in range(2)]
        done = [
            saves.save(session, known, step, values, WriteOptions(threads=1))
            for step, values in STEPS.items()
        ]
    pins_and_labels.pin(store, done[0], "a milestone")
    return snapshot(storage), done


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """No damage makes anybody take much memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < 200 * MIB


def _of(objects: Objects, prefix: str, suffix: str = "") -> list[str]:
    found = [key for key in objects if key.startswith(prefix) and key.endswith(suffix)]
    assert found, f"no {prefix}*{suffix}: this would test nothing"
    return found


def _chunks(objects: Objects, save: SaveId) -> list[Chunk]:
    """All chunks that a checkpoint needs."""
    found = [f for f in catalog.committed(store_of(objects))[0] if f.stored.save == save]
    tables = [found[0].document.table(item) for item in found[0].document.items]
    return [chunk for table in tables for chunk in table.all_chunks()]


def test_damage_of_packs(made: tuple[Objects, list[SaveId]]) -> None:
    objects, done = made
    count = 0
    for save in done:
        needed = _chunks(objects, save)
        for key in _of(objects, object_keys.PACKS):
            for harm in harms(key, objects[key]):
                count += _check_pack(objects, save, harm, needed)
    assert count > 2 * PLACES  # harms that touched a checkpoint


def _check_pack(objects: Objects, save: SaveId, harm: Harm, needed: list[Chunk]) -> bool:
    mine = [c for c in needed if object_keys.pack_key(c.pack) == harm.key]
    hit = [c for c in mine if harm.start < c.offset + c.length and c.offset < harm.end]
    after = harmed(objects, harm)
    is_same = after.get(harm.key) == objects[harm.key]  # zeros over zeros
    if is_same or (hit and all(_is_whole(objects, after, chunk) for chunk in hit)):
        hit = []
    seen = look(after, save, STEPS[save.step])
    assert bool(seen.wrong) == bool(hit), harm
    assert bool(seen.problems["full"]) == bool(hit), harm
    assert bool(seen.problems["crc"]) == bool(hit), harm
    if mine and len(after.get(harm.key, b"")) < len(objects[harm.key]):
        assert seen.problems["quick"], harm
    for level in ("crc", "full"):
        named = {problem.tensor for problem in seen.problems[level]}
        assert seen.wrong <= named, harm
        assert all(p.step == save.step and harm.key in p.text for p in seen.problems[level]), harm
    return bool(hit)


def _is_whole(objects: Objects, after: Objects, chunk: Chunk) -> bool:
    key, place = object_keys.pack_key(chunk.pack), slice(chunk.offset, chunk.offset + chunk.length)
    return after.get(key, b"")[place] == objects[key][place]


def test_damage_of_manifests(made: tuple[Objects, list[SaveId]]) -> None:
    objects, done = made
    for save in done:
        key = save.manifest()
        for harm in harms(key, objects[key]):
            after = harmed(objects, harm)
            if after.get(key) == objects[key]:
                continue
            seen = look(after, save, STEPS[save.step])
            if seen.found is None:
                continue  # said to be damaged when it is listed, or gone
            for level, problems in seen.problems.items():
                assert problems, f"{level}: {harm}"
                assert all(key in problem.text for problem in problems), harm
            for other in done:
                if other != save:
                    assert not look(after, other, STEPS[other.step]).wrong


def test_a_damaged_manifest_stops_every_sweep(made: tuple[Objects, list[SaveId]]) -> None:
    objects, done = made
    key = done[0].manifest()
    for harm in harms(key, objects[key]):
        after = harmed(objects, harm)
        storage = storage_of(after)
        swept = sweep(Store.at(storage), grace_s=0)
        packs = {k for k in snapshot(storage) if k.startswith(object_keys.PACKS)}
        lost = {k for k in objects if k.startswith(object_keys.PACKS)} - packs
        if after.get(key) == objects[key] or key in swept.unreadable:
            assert not lost, harm
        else:  # it can be told what it refers to, or it is gone
            kept = [done[1]] if key not in after else done
            needed = {object_keys.pack_key(c.pack) for s in kept for c in _chunks(objects, s)}
            assert not needed & lost, harm


def test_memory_that_changes_while_it_is_saved_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = storage_of({})
    store, save, data = Store.at(storage, create=True), SaveId(RUN, 1, "0a0b0c0d"), saves.array(1)
    put = storage.put

    def put_late(key: str, parts: Sequence[Buffer]) -> None:
        data[0] += 1
        put(key, parts)

    monkeypatch.setattr(storage, "put", put_late)
    piece = TensorPiece("model/a", "float32", data.shape, (0,), data)
    written = write(store, save, [piece], {}, RunChunkIndex(store, RUN).index(), saves.PLAIN)
    monkeypatch.undo()
    write_part(store, ManifestHeader(save, 1.0, 1), 0, written)
    commit(store, save, 1)
    (found,) = catalog.committed(store, RUN)[0]
    with pytest.raises(DamagedError, match="do not match their hash"):
        Checkpoint(store, found.stored).read("model/a")


@pytest.mark.parametrize("kind", ["packs", "manifests", "all"])
def test_objects_that_have_changed_places(kind: str, made: tuple[Objects, list[SaveId]]) -> None:
    objects, done = made
    keys = {
        "packs": _of(objects, object_keys.PACKS),
        "manifests": _of(objects, object_keys.RUNS, ".manifest"),
        "all": [k for k in objects if k != object_keys.STORE],
    }[kind]
    for one, other in combinations(keys, 2):
        after = {**objects, one: objects[other], other: objects[one]}
        for save in done:
            seen = look(after, save, STEPS[save.step])
            if seen.found is not None and seen.wrong:
                assert seen.problems["full"]
                assert seen.problems["crc"]
                assert seen.problems["quick"]


def test_damage_of_the_stores_own_record(made: tuple[Objects, list[SaveId]]) -> None:
    objects, _ = made
    for harm in harms(object_keys.STORE, objects[object_keys.STORE]):
        after = harmed(objects, harm)
        try:
            record = store_of(after).record
        except FileNotFoundError:
            assert object_keys.STORE not in after
        except (DamagedError, FormatError):
            assert object_keys.STORE in after
        else:
            assert record == store_of(objects).record  # damaged where it makes no difference


def test_damage_of_a_pin_keeps_what_it_pins(made: tuple[Objects, list[SaveId]]) -> None:
    objects, done = made
    (key,) = _of(objects, f"runs/{RUN}/marks/")
    for harm in harms(key, objects[key]):
        after = harmed(objects, harm)
        storage = storage_of(after)
        removed: list[str] = []
        with suppress(DamagedError, FormatError):
            removed = prune(Store.at(storage), RUN, [Last(1)], grace_s=0).removed
        assert bool(removed) == (key not in after), harm
        assert not look(snapshot(storage), done[1], STEPS[2]).wrong


def test_damage_of_leases_and_tombs_loses_nothing(made: tuple[Objects, list[SaveId]]) -> None:
    for prefix in (object_keys.LEASES, object_keys.DELETION_MARKS):
        objects, saving = _while_saving()
        (key,) = _of(objects, prefix)
        for harm in harms(key, objects[key]):
            storage = storage_of(harmed(objects, harm))
            store = Store.at(storage)
            with suppress(FormatError):
                sweep(store, grace_s=0)
            if prefix == object_keys.LEASES and harm.name == "gone":
                continue  # then nobody knows of the save, and it is over
            with suppress(CheckpointError):
                commit(store, saving, 1)
            assert saves.problems(store) == [], harm


def _while_saving() -> tuple[Objects, SaveId]:
    """A store in which a save has announced itself and written its part, and a prune has condemned
    what the save refers to."""
    storage = storage_of({})
    store = Store.at(storage, create=True)
    saves.save_all(store, RUN, {1: STEPS[1]})
    session = Session(store, "b")
    save = session.begin(1)
    written = write(
        store, save, saves.pieces(STEPS[1]), {}, RunChunkIndex(store, "b").index(), saves.PLAIN
    )
    assert written.new_bytes == 0
    write_part(store, ManifestHeader(save, 1.0, 1), 0, written)
    saves.save_all(store, RUN, {2: {"model/a": 50, "optim/a": 51}})
    prune(store, RUN, [Last(1)], grace_s=0)
    objects = snapshot(storage)
    session.close()
    return objects, save


def test_damage_of_parts(made: tuple[Objects, list[SaveId]]) -> None:
    objects, save = _with_parts()
    for key in _of(objects, f"runs/{RUN}/parts/"):
        for harm in harms(key, objects[key]):
            after = harmed(objects, harm)
            _check_commit(after, save, is_same=after.get(key) == objects[key])


def test_parts_that_have_changed_places(made: tuple[Objects, list[SaveId]]) -> None:
    objects, save = _with_parts()
    others, other = _with_parts(step=2)
    first, second = _of(objects, f"runs/{RUN}/parts/")
    swapped = {**objects, first: objects[second], second: objects[first]}
    with pytest.raises(DamagedError, match="part"):
        commit(store_of(swapped), save, 2)
    foreign = {**others, **objects, first: others[other.part(0)]}
    with pytest.raises(DamagedError, match="part"):
        commit(store_of(foreign), save, 2)


def _with_parts(step: int = 1) -> tuple[Objects, SaveId]:
    """A save of two ranks that lacks nothing but the commit."""
    storage = storage_of({})
    store = Store.at(storage, create=True)
    save = SaveId(RUN, step, "0a0b0c0d")
    for rank in range(2):
        mine = saves.pieces(STEPS[step], rank, 2)
        written = write(store, save, mine, {}, RunChunkIndex(store, RUN).index(), saves.PLAIN)
        write_part(store, ManifestHeader(save, float(step), 2), rank, written)
    return snapshot(storage), save


def _check_commit(after: Objects, save: SaveId, *, is_same: bool) -> None:
    storage = storage_of(after)
    store = Store.at(storage)
    try:
        commit(store, save, 2)
    except (DamagedError, FormatError, SaveError):
        assert not is_same
        assert not catalog.committed(store)[0]
        return
    assert saves.problems(store) == []
    assert not look(snapshot(storage), save, STEPS[save.step]).wrong


def test_verify_of_a_checkpoint_that_is_gone(made: tuple[Objects, list[SaveId]]) -> None:
    objects, done = made
    storage = storage_of(objects)
    store = Store.at(storage)
    found = catalog.newest_first(store, RUN)[0]
    storage.delete(list(objects))
    levels: tuple[Level, ...] = ("quick", "crc", "full")
    for level in levels:
        problems = verify(store, found, level)
        assert any(done[1].manifest() in problem.text for problem in problems)
