"""Who saves what, and who reads what for whom: properties of the plan, whatever is spread how."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing import SaveError
from checkpointing.format.box_coverage import as_array, gap
from checkpointing.format.element_types import element
from checkpointing.format.tiles import MAX_TILE, Box, tile_shape, tiles, whole
from checkpointing.layout.global_plan import GlobalPlan, Parts, ReplicatedContent
from checkpointing.layout.save_balance import quotas
from checkpointing.layout.tensor_layout import Cut, Mesh, ShardPart, Structure, TensorLayout
from tests.effort import times

DTYPES = st.sampled_from(["uint8", "bfloat16", "float32", "complex128"])
State = list[Structure]

ANY = settings(deadline=None, max_examples=times(30))


def tile_of(layout: TensorLayout) -> tuple[int, ...]:
    return tile_shape(layout.shape, layout.itemsize)


def held(structure: Structure, rank: int, name: str) -> tuple[ShardPart, ...]:
    """What a rank holds of a tensor, by the definition of a layout."""
    layout = structure.tensors[name]
    if layout.mesh is None:
        return layout.cell(0).parts
    mesh = structure.meshes[layout.mesh]
    at = np.unravel_index(mesh.ranks.index(rank), mesh.shape)
    along = [int(at[cut.mesh_dim]) for cut in layout.cuts]
    return layout.cell(int(np.ravel_multi_index(along, layout.grid))).parts


def size(parts: Parts, layouts: Mapping[str, TensorLayout]) -> int:
    """Bytes."""
    return sum(p.box.count * layouts[name].itemsize for name in parts for p in parts[name])


def loads(by_rank: State) -> list[int]:
    """Bytes that each rank saves."""
    plan = GlobalPlan(by_rank)
    return [size(plan.to_save(rank), state.tensors) for rank, state in enumerate(by_rank)]


def alike(world_size: int, tensors: Mapping[str, TensorLayout], *meshes: Mesh) -> State:
    return [Structure.of(tensors, meshes, ())] * world_size


@st.composite
def cuts(draw: st.DrawFn, mesh: tuple[int, ...], dims: int) -> tuple[Cut, ...]:
    found = []
    for mesh_dim in draw(st.permutations(range(len(mesh)))):
        if mesh[mesh_dim] > 1 and draw(st.booleans()):
            dim, groups = draw(st.integers(0, dims - 1)), draw(st.sampled_from([1, 1, 1, 2, 3]))
            found.append(Cut(mesh_dim, dim, mesh[mesh_dim], groups))
    return tuple(sorted(found, key=lambda cut: cut.dim))


@st.composite
def states(draw: st.DrawFn) -> State:
    """Stages of some ranks each, over which tensors are spread in any way; what some or all ranks
    have besides; and the same mesh of each stage for one name."""
    stages = draw(st.integers(1, 3))
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    count = math.prod(shape)
    meshes = [Mesh.of(shape, range(i * count, (i + 1) * count)) for i in range(stages)]
    own: list[dict[str, TensorLayout]] = [{} for _ in meshes]
    for i in range(draw(st.integers(0, 8))):
        extents = tuple(draw(st.lists(st.integers(0, 300), max_size=3)))
        made = draw(cuts(shape, len(extents))) if extents else ()
        layout = TensorLayout(draw(DTYPES), extents, made, 0 if made else None)
        for stage in draw(st.sets(st.integers(0, stages - 1), min_size=1)):
            own[stage][f"t{i}"] = layout
    values = [draw(st.sets(st.sampled_from("abcd"))) for _ in meshes]
    made_of = [
        Structure.of(tensors, [mesh], names)
        for tensors, mesh, names in zip(own, meshes, values, strict=True)
    ]
    return [structure for structure in made_of for _ in range(count)]


@ANY
@given(states())
def test_every_element_is_saved_once_by_somebody_who_holds_it(by_rank: State) -> None:
    plan, boxes = GlobalPlan(by_rank), dict[str, list[Box]]()
    layouts = {name: it for state in by_rank for name, it in state.tensors.items()}
    for rank, state in enumerate(by_rank):
        for name, parts in plan.to_save(rank).items():
            for box, at in parts:
                assert box.count or 0 in layouts[name].shape
                assert box.count == 0 or is_inside(ShardPart(box, at), held(state, rank, name))
                boxes.setdefault(name, []).extend(tiles(box, tile_of(layouts[name])))
    for name, layout in layouts.items():
        filling = as_array(boxes[name], len(layout.shape))
        assert gap(layout.shape, tile_of(layout), filling) is None


def is_inside(part: ShardPart, mine: Sequence[ShardPart]) -> bool:
    """Whether a part is one of `mine`, or lies in one and at the same place in the local tensor."""
    return any(
        part.box.intersect(box) == part.box
        and part.local == Box(sum_of(part.box.relative_to(box).offsets, at.offsets), part.box.sizes)
        for box, at in mine
    )


def sum_of(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def test_mesh_dimensions_of_one_size_are_told_apart() -> None:
    """Ranks 0 and 1 have the first half of one tensor; of the other, 0 and 2."""
    first, second = (TensorLayout("uint8", (8,), (Cut(mesh_dim, 0, 2),), 0) for mesh_dim in (0, 1))
    plan = GlobalPlan(alike(4, {"a": first, "b": second}, Mesh.of((2, 2), range(4))))
    groups = {
        group.ranks: set(group.reads[0]) | set(group.reads[1]) for group in plan.read_groups(0)
    }
    assert groups == {(0, 1): {"a"}, (0, 2): {"b"}}


@ANY
@given(states())
def test_no_tile_of_what_a_rank_holds_is_divided(by_rank: State) -> None:
    plan = GlobalPlan(by_rank)
    saved, whole_tiles = dict[str, set[Box]](), dict[str, set[Box]]()
    for rank, state in enumerate(by_rank):
        for name, layout in state.tensors.items():
            mine = plan.to_save(rank).get(name, ())
            for found, parts in ((saved, mine), (whole_tiles, held(state, rank, name))):
                cut = {b for box, _ in parts if box.count for b in tiles(box, tile_of(layout))}
                found.setdefault(name, set()).update(cut)
    assert saved == whole_tiles


@ANY
@given(states())
def test_everybody_comes_to_the_same_answer(by_rank: State) -> None:
    """Whatever the order in which a rank has its tensors, and after they have travelled."""
    told = [
        Structure.of(dict(reversed([*state.tensors.items()])), state.meshes, state.values)
        for state in by_rank
    ]
    plan, other = GlobalPlan(by_rank), GlobalPlan(pickle.loads(pickle.dumps(told)))
    for rank in range(len(by_rank)):
        assert plan.to_save(rank) == other.to_save(rank)
        assert plan.values_to_save(rank) == other.values_to_save(rank)


@ANY
@given(states())
def test_every_value_is_saved_by_its_first_holder(by_rank: State) -> None:
    plan, before = GlobalPlan(by_rank), set[str]()
    for rank, state in enumerate(by_rank):
        assert plan.values_to_save(rank) == state.values - before
        before |= state.values


# --- how evenly ---------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
@pytest.mark.parametrize("shape", [(50257, 4096), (1 << 28,), (30, 3000, 3001)])
def test_one_large_tensor_is_divided_to_within_a_tile(
    world_size: int, shape: tuple[int, ...]
) -> None:
    """The issue's example: four ranks and an embedding of about 1 GB."""
    layout = TensorLayout("float32", shape)
    found = loads(alike(world_size, {"model/wte": layout}))
    tile = math.prod(tile_of(layout)) * layout.itemsize
    assert tile <= MAX_TILE
    assert sum(found) == math.prod(shape) * layout.itemsize
    assert all(abs(load - sum(found) / world_size) <= tile for load in found)


def test_few_boxes_make_up_what_a_rank_saves() -> None:
    plan = GlobalPlan(alike(4, {"w": TensorLayout("float32", (50257, 4096))}))
    for rank in range(4):
        assert len(plan.to_save(rank)["w"]) <= 3  # what is left of a row of tiles at both ends


@ANY
@given(st.integers(1, 6), st.lists(st.tuples(DTYPES, st.integers(1, 3_000_000)), max_size=12))
def test_replicated_tensors_are_spread_evenly(world: int, sizes: list[tuple[str, int]]) -> None:
    tensors = {f"t{i}": TensorLayout(dtype, (n,)) for i, (dtype, n) in enumerate(sizes)}
    found = loads(alike(world, tensors))
    largest = max((n * element(dtype).itemsize for dtype, n in sizes), default=0)
    assert sum(found) == sum(n * element(dtype).itemsize for dtype, n in sizes)
    assert max(found) - min(found) <= largest


@ANY
@given(states(), st.sampled_from([None, 1, 1000]))
def test_who_saves_what_is_known_to_all_who_hold_it(by_rank: State, divided: int | None) -> None:
    """And of tensors that are not divided, one place in the groups of all cells saves all."""
    plan = GlobalPlan(by_rank, divided=divided)
    saved = [plan.to_save(rank) for rank in range(len(by_rank))]
    seen: dict[str, ReplicatedContent] = {}
    for rank, state in enumerate(by_rank):
        mine = {name: held(state, rank, name) for name in state.tensors}
        for one in plan.common(rank):
            assert seen.setdefault(one.id, one) == one
            assert rank in one.ranks
            assert set(one.values) <= state.values
            for name, saver, parts in one.shares:
                assert saved[one.ranks[saver]][name] == parts
                assert all(is_inside(part, mine[name]) for part in parts)
    if divided is None:
        places: dict[str, set[int]] = {}
        for one in seen.values():
            for share in one.shares:
                places.setdefault(share.name, set()).add(share.saver)
        assert all(len(found) == 1 for found in places.values())


def test_who_has_much_of_its_own_saves_less_of_what_is_replicated() -> None:
    both = {f"both{i}": TensorLayout("uint8", (40,)) for i in range(4)}
    own = {f"own{i}": TensorLayout("uint8", (30,)) for i in range(3)}
    by_rank = [Structure.of(both, (), ()), Structure.of({**both, **own}, (), ())]
    plan = GlobalPlan(by_rank)
    assert plan.to_save(0).keys() == {"both0", "both1", "both2"}
    assert plan.to_save(1).keys() == {"own0", "own1", "own2", "both3"}
    assert loads(by_rank) == [120, 130]


def test_what_a_few_ranks_share_counts_before_what_all_share() -> None:
    """Two pipeline stages of two ranks: the second one's weights are three times as large."""
    layout = TensorLayout("uint8", (1 << 20,))
    everybody = {f"embedding{i}": layout for i in range(40)}
    first = Structure.of({**{f"stage0.{i}": layout for i in range(10)}, **everybody}, (), ())
    second = Structure.of({**{f"stage1.{i}": layout for i in range(30)}, **everybody}, (), ())
    assert loads([first, first, second, second]) == [20 << 20] * 4


def test_hybrid_shards_are_divided_among_their_replicas() -> None:
    """64 replicas of 16 shards: every rank saves two of the 2048 tiles."""
    mesh = Mesh.of((64, 16), range(1024))
    layout = TensorLayout("float32", (65536, 65536), (Cut(1, 0, 16),), 0)
    found = loads(alike(1024, {"w": layout}, mesh))
    assert found == [16 << 20] * 1024


def test_what_has_no_elements_is_saved_once_as_nothing() -> None:
    mesh = Mesh.of((3,), range(3))
    tensors = {
        "flat": TensorLayout("float32", (0, 4)),
        "cut": TensorLayout("float32", (0, 4), (Cut(0, 1, 3),), 0),
        "scalar": TensorLayout("float32", ()),
    }
    plan = GlobalPlan(alike(3, tensors, mesh))
    names = Counter(name for rank in range(3) for name in plan.to_save(rank))
    assert names == Counter(list(tensors))
    assert plan.to_save(0)["cut"] == (ShardPart(Box((0, 0), (0, 2)), Box((0, 0), (0, 2))),)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=9), st.integers(0, 5000))
def test_quotas_lift_the_lowest_first(given_loads: list[int], total: int) -> None:
    before = np.array(given_loads, np.int64)
    taken = quotas(before, total)
    after = before + taken
    assert taken.sum() == total
    assert (taken >= 0).all()
    assert (after[taken > 0] <= after.min() + 1).all()


# --- reading ------------------------------------------------------------------------------------


@ANY
@given(states())
def test_a_group_reads_what_each_of_its_ranks_wants_once(by_rank: State) -> None:
    plan = GlobalPlan(by_rank)
    for rank, state in enumerate(by_rank):
        layouts = state.tensors
        wanted = {n: cells(held(state, rank, n), it) for n, it in layouts.items()}
        got = {name: Counter[tuple[Box, Box]]() for name in layouts}
        for group in plan.read_groups(rank):
            assert rank in group.ranks
            assert group in plan.read_groups(group.ranks[0]), "all of them know the same group"
            for reads in group.reads:
                for name, parts in reads.items():
                    got[name].update(cells(parts, layouts[name]))
        assert got == wanted


@ANY
@given(states(), st.sampled_from([None, 1, 1000]))
def test_in_memory_each_rank_of_a_group_has_what_it_saves(
    by_rank: State, divided: int | None
) -> None:
    plan = GlobalPlan(by_rank, divided=divided)
    for rank, state in enumerate(by_rank):
        layouts = state.tensors
        got = {name: Counter[tuple[Box, Box]]() for name in layouts}
        for group in plan.save_groups(rank):
            assert group in plan.save_groups(group.ranks[0]), "all of them know the same group"
            for holder, reads in zip(group.ranks, group.reads, strict=True):
                for name, parts in reads.items():
                    assert plan.to_save(holder)[name] == parts
                    got[name].update(cells(parts, layouts[name]))
        assert got == {n: cells(held(state, rank, n), it) for n, it in layouts.items()}


def cells(parts: Sequence[ShardPart], layout: TensorLayout) -> Counter[tuple[Box, Box]]:
    """Parts cut into tiles, and where these are in the local tensor."""
    found: Counter[tuple[Box, Box]] = Counter()
    for box, at in parts:
        for tile in tiles(box, tile_of(layout)):
            local = sum_of(tile.relative_to(box).offsets, at.offsets)
            found[tile, Box(local, tile.sizes)] += 1
    return found


def test_every_replica_reads_its_share() -> None:
    layout = TensorLayout("float32", (4096, 4096), (Cut(1, 0, 2),), 0)
    plan = GlobalPlan(alike(8, {"w": layout}, Mesh.of((4, 2), range(8))), divided=1)
    (group,) = plan.read_groups(3)
    assert group.ranks == (1, 3, 5, 7)
    assert [size(reads, {"w": layout}) for reads in group.reads] == [8 << 20] * 4
    for place, rank in enumerate(group.ranks):
        assert plan.to_save(rank) == group.reads[place]


def test_a_part_of_a_structure_is_planned_alone() -> None:
    structure = Structure.of({n: TensorLayout("uint8", (100,)) for n in "abc"}, (), {"lr"})
    chosen = structure.only(["b"])
    assert (list(chosen.tensors), chosen.values) == (["b"], frozenset())
    assert chosen.digest not in (structure.digest, structure.only(["c"]).digest)
    assert [g.reads for g in GlobalPlan([chosen]).read_groups(0)] == [
        ({"b": (ShardPart(whole((100,)), whole((100,))),)},)
    ]


# --- refusals --------------------------------------------------------------------


def test_one_name_for_two_tensors_is_refused() -> None:
    one, other = TensorLayout("int8", (2,)), TensorLayout("int8", (3,))
    with pytest.raises(SaveError, match=r"'w' is int8\[2\] on rank 0 and int8\[3\] on rank 1"):
        GlobalPlan([Structure.of({"w": one}, (), ()), Structure.of({"w": other}, (), ())]).to_save(
            0
        )


def test_one_tensor_that_is_cut_in_two_ways_is_refused() -> None:
    sharded = TensorLayout("int8", (4,), (Cut(0, 0, 2),), 0)
    by_rank = alike(2, {"w": sharded}, Mesh.of((2,), (0, 1)))
    by_rank += alike(1, {"w": TensorLayout("int8", (4,))})
    with pytest.raises(SaveError, match=r"'w' is .* in 2 along dimension 0 on rank 0, but whole"):
        GlobalPlan(by_rank).to_save(1)


def test_what_is_cut_in_two_ways_can_be_read() -> None:
    """Each way is read on its own: ranks of other layouts have no boxes in common."""
    sharded, flat = TensorLayout("int8", (4,), (Cut(0, 0, 2),), 0), TensorLayout("int8", (4,))
    plan = GlobalPlan(alike(2, {"w": sharded}, Mesh.of((2,), (0, 1))) + alike(2, {"w": flat}))
    assert [[group.ranks for group in plan.read_groups(rank)] for rank in range(4)] == [
        [(0,)],
        [(1,)],
        [(2, 3)],
        [(2, 3)],
    ]


def test_a_shard_that_no_rank_has_in_its_state_is_refused() -> None:
    sharded = TensorLayout("int8", (4, 3), (Cut(0, 0, 2),), 0)
    by_rank = alike(1, {"w": sharded}, Mesh.of((2,), (0, 1))) + alike(1, {})
    with pytest.raises(SaveError, match=r"6 elements of 'w' are not held by any rank"):
        GlobalPlan(by_rank).to_save(1)
    assert GlobalPlan(by_rank).read_groups(0)[0].ranks == (0,)
