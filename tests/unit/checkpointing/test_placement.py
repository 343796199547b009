"""Which boxes ranks hold, against torch's own cutting; and who saves what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from checkpointing import SaveError
from checkpointing.format.table import Spec, gap
from checkpointing.format.tiles import Box, tiles
from checkpointing.placement import Held, held, share
from checkpointing.state import to_save


@contextmanager
def rank_of(world_size: int, rank: int) -> Iterator[None]:
    """Be one rank of a world in which nobody talks."""
    store = FakeStore()
    dist.init_process_group("fake", store=store, rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def cut(full: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """This rank's shard of `full`, without communication."""
    return distribute_tensor(full, mesh, placements, src_data_rank=None)


FSDP_AND_TP = (_StridedShard(0, split_factor=2), Shard(0))
LAYOUTS = [
    ((4,), (Shard(0),)),
    ((4,), (Shard(1),)),
    ((3,), (Replicate(),)),
    ((5,), (Shard(0),)),
    ((2, 2), (Replicate(), Shard(0))),
    ((2, 2), (Shard(0), Replicate())),
    ((2, 3), (Shard(0), Shard(1))),
    ((3, 2), (Shard(1), Shard(0))),
    ((2, 2), (Shard(0), Shard(0))),
    ((2, 2), FSDP_AND_TP),
    ((2, 3), (_StridedShard(0, split_factor=3), Shard(0))),
    ((2, 2), (Shard(0), Shard(1))),
    ((2, 2, 2), (Replicate(), *FSDP_AND_TP)),
]


@pytest.mark.parametrize("shape", [(8, 6), (7, 5), (13, 2), (3, 8), (1, 1), (2, 9, 3)])
@pytest.mark.parametrize(("mesh", "placements"), LAYOUTS)
def test_a_box_is_what_torch_has_cut_off(
    mesh: tuple[int, ...], placements: tuple[Placement, ...], shape: tuple[int, ...]
) -> None:
    full = torch.arange(torch.Size(shape).numel()).reshape(shape)
    world_size = torch.Size(mesh).numel()
    boxes = []
    for rank in range(world_size):
        with rank_of(world_size, rank):
            shard = cut(full, init_device_mesh("cpu", mesh), placements)
            part = held("w", shard)
            assert part is not None
            assert part.box.sizes == shard.to_local().shape
            assert torch.equal(full[part.box.slices], shard.to_local())
            assert (part.dtype, part.shape) == ("int64", shape)
            boxes.append(part.box)
    distinct = {box for box in boxes if box.count}
    assert gap(Spec("int64", shape, shape), distinct) is None


def test_a_plain_tensor_is_held_whole() -> None:
    assert held("w", torch.zeros(3, 2)) == Held("float32", (3, 2), Box((0, 0), (3, 2)))
    assert held("n", torch.tensor(1)) == Held("int64", (), Box((), ()))
    assert held("p", torch.nn.Parameter(torch.zeros(0, 2))) == Held(
        "float32", (0, 2), Box((0, 0), (0, 2))
    )


@pytest.mark.parametrize(
    ("mesh", "placements", "rows"),
    [
        ((2, 2), (Shard(0), _StridedShard(0, split_factor=2)), 8),
        ((2, 2), (Replicate(), _StridedShard(0, split_factor=2)), 8),
        ((2, 2), (_StridedShard(1, split_factor=4), Shard(0)), 8),
        ((3, 2), FSDP_AND_TP, 13),
    ],
)
def test_rows_that_do_not_lie_together_are_refused(
    mesh: tuple[int, ...], placements: tuple[Placement, ...], rows: int
) -> None:
    """Of such a rank's rows torch tells the first only: saving them would mix them up."""
    world_size = torch.Size(mesh).numel()
    with rank_of(world_size, world_size - 2):
        shard = cut(torch.zeros(rows, 8), init_device_mesh("cpu", mesh), placements)
        with pytest.raises(TypeError, match=r"cannot save 'w'.*redistribute"):
            held("w", shard)
        with pytest.raises(TypeError, match=r"cannot save 'model/w'.*redistribute"):
            to_save({"model": {"w": shard}})


def test_partial_sums_are_refused() -> None:
    with rank_of(2, 0):
        mesh = init_device_mesh("cpu", (2,))
        partial = DTensor.from_local(torch.zeros(4), mesh, [Partial()], run_check=False)
        with pytest.raises(TypeError, match=r"cannot save 'grads/g'.*partial sum"):
            to_save({"grads": {"g": partial}})


def test_a_shard_of_another_size_than_its_placements_say_is_refused() -> None:
    with rank_of(2, 0):
        mesh = init_device_mesh("cpu", (2,))
        odd = DTensor.from_local(
            torch.zeros(3, 2),
            mesh,
            [Shard(0)],
            run_check=False,
            shape=torch.Size((8, 2)),
            stride=(2, 1),
        )
        with pytest.raises(TypeError, match=r"cannot save 'w': this rank holds \(3, 2\)"):
            held("w", odd)


@pytest.mark.parametrize("shape", [(4, 2), ()])
def test_of_other_ranks_tensors_nothing_is_held(shape: tuple[int, ...]) -> None:
    with rank_of(2, 1):
        mesh = DeviceMesh("cpu", [0])
        local = torch.empty(0)
        stride = tuple(torch.empty(shape).stride())
        away = DTensor.from_local(
            local, mesh, [Replicate()], run_check=False, shape=torch.Size(shape), stride=stride
        )
        assert held("w", away) is None


# --- share --------------------------------------------------------------------------------------

DTYPES = st.sampled_from(["uint8", "bfloat16", "float32", "complex128"])
WORLDS = st.integers(1, 6)


@st.composite
def states(draw: st.DrawFn) -> list[dict[str, Held]]:
    """What the ranks hold: tensors replicated on all or some ranks, and such as are cut."""
    world_size = draw(WORLDS)
    by_rank: list[dict[str, Held]] = [{} for _ in range(world_size)]
    for i in range(draw(st.integers(0, 12))):
        name, dtype, rows = f"t{i}", draw(DTYPES), draw(st.integers(0, 40))
        groups = draw(st.integers(1, world_size))  # of ranks with the same box
        extent = max(1, -(-rows // groups))
        boxes = list(tiles(Box((0,), (rows,)), (extent,))) or [Box((0,), (0,))]
        for rank in range(world_size):
            group = rank % groups
            box = boxes[group] if group < len(boxes) else Box((rows,), (0,))
            by_rank[rank][name] = Held(dtype, (rows,), box)
    return by_rank


def saved(by_rank: Sequence[Mapping[str, Held]]) -> Counter[tuple[str, Box]]:
    mine = share(by_rank)
    return Counter(
        (name, by_rank[rank][name].box) for rank, names in enumerate(mine) for name in names
    )


def loads(by_rank: Sequence[Mapping[str, Held]]) -> list[int]:
    """Bytes that each rank saves."""
    return [
        sum(by_rank[rank][name].bytes for name in names)
        for rank, names in enumerate(share(by_rank))
    ]


@given(states())
def test_every_box_is_saved_once_by_somebody_who_holds_it(by_rank: list[dict[str, Held]]) -> None:
    wanted = {
        (name, part.box)
        for tensors in by_rank
        for name, part in tensors.items()
        if part.box.count or 0 in part.shape
    }
    assert saved(by_rank) == Counter(wanted)


@given(states(), st.randoms())
def test_everybody_comes_to_the_same_answer(by_rank: list[dict[str, Held]], random: object) -> None:
    """Whatever the order in which a rank happens to have its tensors."""
    shuffled = []
    for tensors in by_rank:
        items = list(tensors.items())
        random.shuffle(items)  # type: ignore[attr-defined]
        shuffled.append(dict(items))
    assert share(shuffled) == share(by_rank)


@given(WORLDS, st.lists(st.tuples(DTYPES, st.integers(1, 100)), max_size=20))
def test_replicated_tensors_are_spread_evenly(world: int, sizes: list[tuple[str, int]]) -> None:
    """No two ranks are further apart than the largest tensor: else it had gone to the other one."""
    tensors = {f"t{i}": Held(dtype, (n,), Box((0,), (n,))) for i, (dtype, n) in enumerate(sizes)}
    by_rank = [tensors] * world
    found = loads(by_rank)
    largest = max((part.bytes for part in tensors.values()), default=0)
    assert sum(found) == sum(part.bytes for part in tensors.values())
    assert max(found) - min(found) <= largest


def test_who_has_much_of_its_own_saves_less_of_what_is_replicated() -> None:
    def rows(n: int) -> Held:
        return Held("uint8", (n,), Box((0,), (n,)))

    both = {f"both{i}": rows(40) for i in range(4)}
    by_rank = [both, {**both, **{f"own{i}": rows(30) for i in range(3)}}]
    assert share(by_rank) == [{"both0", "both1", "both2"}, {"own0", "own1", "own2", "both3"}]
    assert loads(by_rank) == [120, 130]


def test_one_name_for_two_tensors_is_refused() -> None:
    one, other = Held("int8", (2,), Box((0,), (2,))), Held("int8", (3,), Box((0,), (3,)))
    with pytest.raises(SaveError, match=r"'w' is .* on one rank and .* on rank 1"):
        share([{"w": one}, {"w": other}])
