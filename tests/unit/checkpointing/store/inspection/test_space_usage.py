"""Usage against the plainest possible accounting, with sets, and against what removal frees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.codec import Codec
from checkpointing.format.chunks import Chunk
from checkpointing.format.object_keys import SaveId, pack_key
from checkpointing.store.catalog import committed
from checkpointing.store.deletion.pack_sweep import sweep
from checkpointing.store.inspection.space_usage import (
    ChunkReferences,
    FreedSpace,
    ItemOfSave,
    StoredCost,
    freed,
    measure,
    pack_usage,
    per_checkpoint,
)
from checkpointing.store.store import Store
from tests.unit.checkpointing.store.tensor_checkpoints import find, make

PACKS = [bytes([i]) * 16 for i in range(3)]
PLACES = [(pack, offset) for pack in PACKS for offset in (8, 100, 250)]
# which places each item of each checkpoint refers to, some of them twice
CONTENTS = st.lists(
    st.dictionaries(
        st.sampled_from(["model", "optimizer", "extra"]),
        st.lists(st.sampled_from(range(len(PLACES))), max_size=8),
        max_size=3,
    ),
    max_size=5,
)
Contents = list[dict[str, list[int]]]


def _length(place: int) -> int:
    return 10 + 7 * place


def _chunk(place: int) -> Chunk:
    pack, offset = PLACES[place]
    return Chunk(bytes([place]) * 32, pack, offset, _length(place), 999, Codec.RAW, 0)


def _save(number: int) -> SaveId:
    return SaveId("run", number, "0" * 8)


def _refs(contents: Contents) -> ChunkReferences:
    refs = ChunkReferences()
    for number, items in enumerate(contents):
        for item, places in items.items():
            refs.add(_save(number), item, map(_chunk, places))
    return refs


def _bytes(places: set[int]) -> int:
    return sum(map(_length, places))


def _union(items: dict[str, list[int]]) -> set[int]:
    return {place for places in items.values() for place in places}


@given(CONTENTS)
def test_costs_are_those_of_sets(contents: Contents) -> None:
    got = {usage.save.step: usage for usage in per_checkpoint(_refs(contents))}
    assert got.keys() == {i for i, items in enumerate(contents) if items}
    for number, usage in got.items():
        mine = _union(contents[number])
        others = {p for i, items in enumerate(contents) if i != number for p in _union(items)}
        assert usage.cost == StoredCost(_bytes(mine), _bytes(mine - others))
        for item, places in contents[number].items():
            assert usage.items[item] == StoredCost(
                _bytes(set(places)), _bytes(set(places) - others)
            )


@given(CONTENTS, st.sets(st.tuples(st.integers(0, 4), st.sampled_from(["model", "extra"]))))
def test_freed_is_what_nobody_who_stays_needs(
    contents: Contents, going: set[tuple[int, str]]
) -> None:
    def goes(owner: ItemOfSave) -> bool:
        return (owner.save.step, owner.item) in going

    owners = [(i, item, set(p)) for i, items in enumerate(contents) for item, p in items.items()]
    stays = {p for i, item, places in owners if (i, item) not in going for p in places}
    free = {p for i, item, places in owners if (i, item) in going for p in places} - stays
    left = {PLACES[p][0] for p in stays}
    whole = {p for p in free if PLACES[p][0] not in left}
    packs = {PLACES[p][0] for p in whole}
    assert freed(_refs(contents), goes) == FreedSpace(_bytes(free), len(packs), _bytes(whole))


@given(CONTENTS)
def test_packs_are_live_dead_garbage_or_missing(contents: Contents) -> None:
    needed = {p for items in contents for p in _union(items)}
    sizes = {PACKS[0]: 10_000, PACKS[1]: 20_000}
    usage = pack_usage(_refs(contents), sizes)
    used = {PLACES[p][0] for p in needed}
    in_there = {p for p in needed if PLACES[p][0] in sizes}
    live = _bytes(in_there) + 100 * len(in_there) + 40 * len(used & sizes.keys())
    assert usage.live_bytes == live
    assert usage.dead_bytes == sum(sizes[p] for p in used & sizes.keys()) - live
    assert usage.garbage_bytes == sum(size for pack, size in sizes.items() if pack not in used)
    assert usage.garbage_packs == len(sizes.keys() - used)
    assert usage.bytes == usage.live_bytes + usage.dead_bytes + usage.garbage_bytes
    assert usage.missing == ((pack_key(PACKS[2]),) if PACKS[2] in used else ())


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    """Three checkpoints that share some tensors, and a save that was never committed."""
    made = Store.open(f"memory://{request.node.name}", create=True)
    rng = np.random.default_rng(1)
    frozen = rng.standard_normal((300, 200)).astype("f4")
    for step in (1, 2, 3):
        own = rng.standard_normal((300, 100 * step)).astype("f4")
        tensors = {"model/frozen": ("float32", frozen), f"optimizer/of_{step}": ("float32", own)}
        make(made, step, tensors)
    make(made, 9, {"model/late": ("float32", frozen + 1)}, commits=False)
    return made


def test_a_fresh_store_has_no_dead_bytes(store: Store) -> None:
    measured = measure(store)
    usage = pack_usage(measured.refs, measured.sizes)
    assert (usage.dead_bytes, usage.missing, measured.problems) == (0, (), {})
    assert usage.garbage_packs == 1  # of the save that was not committed
    assert usage.bytes == sum(measured.sizes.values())


@pytest.mark.parametrize("step", [1, 2, 3])
def test_alone_is_what_removing_it_frees(store: Store, step: int) -> None:
    def live() -> int:
        measured = measure(store)
        return sum(_places(measured.refs).values())

    usages = {usage.save.step: usage for usage in per_checkpoint(measure(store).refs)}
    before = live()
    _remove(store, usages[step].save)
    assert before - live() == usages[step].cost.alone > 0
    assert usages[step].cost.shared > 0


def test_freed_packs_are_those_that_a_sweep_deletes(store: Store) -> None:
    sweep(store, grace_s=0)  # the unfinished save's
    gone = {1, 2}
    measured = measure(store)
    planned = freed(measured.refs, lambda owner: owner.save.step in gone)
    for usage in per_checkpoint(measured.refs):
        if usage.save.step in gone:
            _remove(store, usage.save)
    swept = sweep(store, grace_s=0)
    assert swept.deleted == planned.packs > 0
    after = pack_usage((again := measure(store)).refs, again.sizes)
    assert after.garbage_packs == 0
    rest = planned.bytes - planned.pack_bytes
    assert (after.dead_bytes > 0) == (rest > 0)


def test_progress_counts_checkpoints(store: Store) -> None:
    told: list[int] = []
    measure(store, told.append)
    assert sum(told) == 3


def test_a_damaged_table_is_reported_and_the_rest_counted(store: Store) -> None:
    found = committed(store)[0][0]
    data = bytearray(store.storage.get(found.stored.key))
    data[-1] ^= 1
    store.storage.replace(found.stored.key, bytes(data))
    store.forget(found.stored.key)
    measured = measure(Store.at(store.storage))
    assert list(measured.problems) == [found.stored.save]
    assert {owner.save.step for owner in measured.refs.owners} >= {1, 2}


def _places(refs: ChunkReferences) -> dict[tuple[int, int], int]:
    rows = refs.rows()
    return {(int(r["pack"]), int(r["offset"])): int(r["length"]) for r in rows}


def _remove(store: Store, save: SaveId) -> None:
    found = find(store, save)
    store.storage.delete([found.stored.key])
    store.forget(found.stored.key)


def test_nothing_costs_nothing() -> None:
    assert freed(ChunkReferences(), lambda owner: True) == FreedSpace(0, 0, 0)
    assert per_checkpoint(ChunkReferences()) == []
