"""What a save may refer to: only what is there, is not condemned, and stays."""

from __future__ import annotations

import logging
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.codec import Codec
from checkpointing.format import item_table
from checkpointing.format.chunks import Chunk
from checkpointing.format.item_table import ItemTable, TensorSpec, from_bytes, to_bytes
from checkpointing.format.manifest import group_section
from checkpointing.format.object_keys import pack_key
from checkpointing.format.tiles import Box
from checkpointing.retention import Last
from checkpointing.store.catalog import committed
from checkpointing.store.deletion import deletion_marks
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import (
    ChunkIndex,
    RunChunkIndex,
    StoredChunks,
    view_store,
)
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.schedules.model_storage import ModelStorage, World
from tests.unit.checkpointing.store.schedules.scheduler import Scheduler

RUN = "a"
V = {"model/w": 1, "model/v": 2}
W = {"model/w": 1, "model/v": 3}
PACK, OTHER = bytes(16), bytes([1]) * 16


@pytest.fixture
def store() -> Store:
    return Store.at(ModelStorage(World(), Scheduler()), create=True)


def _chunk(number: int, pack: bytes, base: Chunk | None = None) -> Chunk:
    codec = Codec.RAW if base is None else Codec.DELTA
    return Chunk(bytes([number]) * 32, pack, 8, 4, 4, codec, 0, base)


def _table(chunk: Chunk) -> ItemTable:
    box = Box((0,), (1,))
    return ItemTable({"model/w": TensorSpec("float32", (1,), (1,))}, {"model/w": {box: chunk}})


def _read_back(table: ItemTable) -> ItemTable:
    packs = sorted(table.packs())
    data = to_bytes(table, {pack: i for i, pack in enumerate(packs)})
    with mock.patch("checkpointing.format.item_table._MANY", 0):  # in columns
        return from_bytes(data, packs, "there")


def _known(index: ChunkIndex, store: Store) -> list[Chunk]:
    """What it knows of all that any checkpoint has, each content once."""
    ids = {
        chunk.id
        for found in committed(store)[0]
        for table in found.document.content().items.values()
        for chunk in table.all_chunks()
    }
    return [chunk for chunk in map(index.find, ids) if chunk is not None]


@pytest.mark.parametrize("stored", [False, True], ids=["made here", "read"])
def test_nothing_in_a_condemned_pack_is_known(stored: bool) -> None:
    index = ChunkIndex(marked_packs=frozenset([PACK]))
    good, bad = _chunk(1, OTHER), _chunk(2, PACK)
    on_bad = _chunk(3, OTHER, base=bad)
    for chunk in (good, bad, on_bad):
        table = _table(chunk)
        tables = [_read_back(table) if stored else table]
        index.place(tables)
        index.add(tables, {})
        is_safe = chunk is good
        assert index.find(chunk.id) == (chunk if is_safe else None)
        assert (index.at("model/w", Box((0,), (1,))) is not None) == is_safe


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.sets(st.integers(0, 4)))
def test_what_is_read_is_found_by_its_whole_id(numbers: list[int], others: set[int]) -> None:
    """Ids that begin alike are not taken for each other."""
    made = {n: replace(_chunk(1, OTHER), id=bytes(31) + bytes([n])) for n in {*numbers, *others}}
    spec = TensorSpec("float32", (len(numbers),), (1,))
    placed = {Box((at,), (1,)): replace(made[n], offset=at) for at, n in enumerate(numbers)}
    index = ChunkIndex()
    index.add([_read_back(ItemTable({"m/w": spec}, {"m/w": placed}))], {})
    for number, chunk in made.items():
        found = index.find(chunk.id)
        expected = numbers.index(number) if number in numbers else None
        assert (None if found is None else found.offset) == expected
        assert found is None or found.id == chunk.id


def test_the_place_has_to_be_the_very_same() -> None:
    index = ChunkIndex()
    index.place([_table(_chunk(1, PACK))])
    assert index.at("model/w", Box((0,), (1,))) is not None
    assert index.at("model/w", Box((0,), (2,))) is None
    assert index.at("model/other", Box((0,), (1,))) is None
    assert index.at("optim/w", Box((0,), (1,))) is None


def test_the_newest_checkpoint_of_the_run_is_known(store: Store) -> None:
    saves.save_all(store, RUN, {1: V, 2: W})
    saves.save_all(store, "b", {9: {"model/w": 7}})
    known = RunChunkIndex(store, RUN).index()
    assert len(_known(known, store)) == 2  # of step 2; not the other run's
    assert known.places.keys() == W.keys()


def test_a_run_without_checkpoints_knows_the_newest_of_every_other_run(store: Store) -> None:
    saves.save_all(store, RUN, {1: V, 2: W})
    saves.save_all(store, "b", {9: {"model/w": 7}})
    known = RunChunkIndex(store, "new").index()
    assert len(_known(known, store)) == 3
    assert known.places == {}  # no deltas to another run's tensors


def test_a_condemned_pack_is_written_again(store: Store) -> None:
    (save,) = saves.save_all(store, RUN, {1: V})
    (pack,) = [entry.key for entry in store.storage.list("packs/")]
    deletion_marks.write(store, packs=[pack])
    assert _known(RunChunkIndex(store, RUN).index(), store) == []
    saves.save_all(store, RUN, {2: V})
    assert len(store.storage.list("packs/")) == 2
    assert saves.problems(store) == []
    assert save.manifest() in {s.key for s in store.manifests(RUN)}


def test_what_a_rank_wrote_is_forgotten_with_its_checkpoint(store: Store) -> None:
    with Session(store, RUN) as session:
        known = RunChunkIndex(store, RUN)
        saves.save(session, [known], 1, V)
        assert len(_known(known.index(), store)) == 2
        saves.save_all(store, RUN, {2: {"model/w": 50, "model/v": 51}})
        prune(store, RUN, [Last(1)], grace_s=0)
        found = _known(known.index(), store)  # of step 2, whose packs are there
        there = {entry.key for entry in store.storage.list("packs/")}
        assert {pack_key(chunk.pack) for chunk in found} <= there


def test_the_view_of_another_rank_is_taken_as_it_is(store: Store) -> None:
    saves.save_all(store, RUN, {1: V})
    seen = StoredChunks(store, RUN, view_store(store, RUN))
    (pack,) = [entry.key for entry in store.storage.list("packs/")]
    deletion_marks.write(store, packs=[pack])
    assert len(_known(RunChunkIndex(store, RUN).index(seen), store)) == 2
    assert _known(RunChunkIndex(store, RUN).index(), store) == []


def test_ranks_that_share_a_view_read_the_manifest_once(store: Store) -> None:
    saves.save_all(store, RUN, {1: V})
    fresh = Store.at(store.storage)
    seen = StoredChunks(fresh, RUN, view_store(fresh, RUN))
    first, second = RunChunkIndex(fresh, RUN), RunChunkIndex(fresh, RUN)
    with mock.patch.object(fresh.storage, "get_range", wraps=fresh.storage.get_range) as reads:
        index = first.index(seen)
        count = reads.call_count
        assert count > 0
        assert second.index(seen) is index
        assert reads.call_count == count
    saves.save_all(store, RUN, {2: W})
    first.committed(seen.view.manifests[0].save, {}, {})
    assert first.index(seen) is not index, "it remembers what it has written itself"


def test_a_damaged_manifest_is_passed_over(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(store.storage, ModelStorage)
    _, newest = saves.save_all(store, RUN, {1: V, 2: W})
    store.storage.world.objects[newest.manifest()] = (b"damaged", 0.0)
    fresh = Store.at(store.storage)
    with caplog.at_level(logging.WARNING, "checkpointing"):
        known = RunChunkIndex(fresh, RUN).index()
    assert set(known.places) == set(V)
    assert len(_known(known, fresh)) == 2
    assert newest.manifest() in caplog.text


@pytest.fixture
def grouped(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with a checkpoint whose manifest has a group for each of its tensors."""
    monkeypatch.setattr(item_table, "GROUPED", 1)
    monkeypatch.setattr(item_table, "_GROUP", 1)
    (save,) = saves.save_all(store, RUN, {1: {**V, "optim/v": 5}})
    document = store.document(store.manifests(RUN)[0])
    assert document.save == save
    assert [len(document.outline(item).groups) for item in ("model", "optim")] == [2, 1]
    return Store.at(store.storage)


def test_only_groups_of_the_tensors_that_are_written_are_read(grouped: Store) -> None:
    seen = StoredChunks(grouped, RUN, view_store(grouped, RUN))
    first, second = RunChunkIndex(grouped, RUN), RunChunkIndex(grouped, RUN)
    with mock.patch.object(grouped.storage, "get_range", wraps=grouped.storage.get_range) as reads:
        index = first.index(seen, ["model/w", "optim/new", "other/w"])
        count = reads.call_count
        assert index.places.keys() == {"model/w"}
        assert len(_known(index, grouped)) == 1
        count = reads.call_count
        both = second.index(seen, ["model/v", "model/w"])
        assert reads.call_count == count + 1, "of two groups, one was known"
        assert both.places.keys() == V.keys()
        assert index.places.keys() == {"model/w"}, "the first rank may be being written"
        assert first.index(seen, ["model/v"]) is both
        assert reads.call_count == count + 1
    assert seen.index().places.keys() == {*V, "optim/v"}
    assert len(_known(seen.index(), grouped)) == 3


def test_what_has_a_new_name_beyond_its_groups_is_written_again(grouped: Store) -> None:
    before = len(grouped.storage.list("packs/"))
    saves.save_all(grouped, RUN, {2: V})
    assert len(grouped.storage.list("packs/")) == before
    saves.save_all(grouped, RUN, {3: {"model/w": V["model/w"], "model/x": V["model/v"]}})
    assert len(grouped.storage.list("packs/")) == before + 1
    assert saves.problems(grouped) == []


def test_a_damaged_group_is_passed_over(grouped: Store, caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(grouped.storage, ModelStorage)
    key = grouped.manifests(RUN)[0].key
    document = grouped.document(grouped.manifests(RUN)[0])
    data, written = grouped.storage.world.objects[key]
    section = document.container.section(group_section("model", 0))
    assert data.count(section) == 1
    damaged = data.replace(section, bytes(len(section)))
    grouped.storage.world.objects[key] = (damaged, written)
    fresh = Store.at(grouped.storage)
    with caplog.at_level(logging.WARNING, "checkpointing"):
        index = RunChunkIndex(fresh, RUN).index(tensors=V)
    assert len(index.places) == 1
    assert key in caplog.text
