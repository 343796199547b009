"""Which boxes ranks hold, against torch's own cutting."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
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
from torch.distributed.tensor import _dtensor_spec as specs
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from checkpointing.format.box_coverage import as_array, gap
from checkpointing.format.tiles import Box
from checkpointing.layout.dtensor_cuts import decoded_order
from checkpointing.layout.dtensor_placement import LocalShard, local_shard, structure
from checkpointing.layout.tensor_layout import Cells, ShardPart
from checkpointing.state.item_adapters import to_save
from checkpointing.torch_internals import is_shard_order_known


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


def numbered(shape: Sequence[int]) -> torch.Tensor:
    """Every element is another number."""
    return torch.arange(math.prod(shape)).reshape(tuple(shape))


def filled(full: torch.Tensor, parts: Sequence[ShardPart], shape: Sequence[int]) -> torch.Tensor:
    """A local tensor of this shape made of these parts; -1 where there are none."""
    local = torch.full(tuple(shape), -1)
    for box, at in parts:
        local[at.slices] = full[box.slices]
    return local


FSDP_AND_TP = (_StridedShard(0, split_factor=2), Shard(0))
LAYOUTS = [
    ((4,), (Shard(0),)),
    ((4,), (Shard(1),)),
    ((3,), (Replicate(),)),
    ((5,), (Shard(0),)),
    ((3,), (_StridedShard(0, split_factor=2),)),
    ((2,), (_StridedShard(1, split_factor=4),)),
    ((2, 2), (Replicate(), Shard(0))),
    ((2, 2), (Shard(0), Replicate())),
    ((2, 3), (Shard(0), Shard(1))),
    ((3, 2), (Shard(1), Shard(0))),
    ((2, 2), (Shard(0), Shard(0))),
    ((2, 2), (Shard(0), Shard(1))),
    ((2, 2), (Shard(0), _StridedShard(0, split_factor=2))),
    ((2, 2), (Replicate(), _StridedShard(0, split_factor=2))),
    ((2, 2), (_StridedShard(1, split_factor=4), Shard(0))),
    ((2, 2), (_StridedShard(0, split_factor=3), Shard(0))),
    ((2, 2, 2), (Replicate(), Shard(0), _StridedShard(0, split_factor=3))),
]
EVEN = [  # of whose shards _StridedShard and the order that it stands for say the same
    ((2, 2), FSDP_AND_TP),
    ((2, 3), (_StridedShard(0, split_factor=3), Shard(0))),
    ((2, 2, 2), (Replicate(), *FSDP_AND_TP)),
]
SHAPES = [(8, 6), (7, 5), (13, 2), (3, 8), (1, 1), (2, 9, 3), (0, 4), (4, 0)]
CASES = [*product(LAYOUTS, SHAPES), *product(EVEN, [(12, 2), (24, 3)])]


@pytest.mark.parametrize(("layout", "shape"), CASES)
def test_parts_are_what_torch_has_cut_off(
    layout: tuple[tuple[int, ...], tuple[Placement, ...]], shape: tuple[int, ...]
) -> None:
    mesh, placements = layout
    full = numbered(shape)
    world_size = math.prod(mesh)
    boxes = set()
    for rank in range(world_size):
        with rank_of(world_size, rank):
            try:
                shard = cut(full, init_device_mesh("cpu", mesh), placements)
            except AssertionError as error:  # before torch 2.8
                assert "only allows even sharding" in str(error)  # noqa: PT017  torch's own
                return
            if not is_shard_order_known() and decoded_order(placements, mesh) is None:
                with pytest.raises(TypeError, match=r"cannot save 'w': torch .* may divide"):
                    local_shard("w", shard)
                return
            found = local_shard("w", shard)
            assert found is not None
            assert torch.equal(filled(full, found.parts, shard.to_local().shape), shard.to_local())
            assert (found.dtype, found.shape) == ("int64", shape)
            assert found.bytes == shard.to_local().nbytes
            boxes |= {box for box, _ in found.parts}
    assert gap(shape, shape, as_array(boxes, len(shape))) is None


def test_what_lies_together_is_one_part() -> None:
    with rank_of(4, 3):
        mesh = init_device_mesh("cpu", (2, 2))
        shard = cut(numbered((8, 2)), mesh, FSDP_AND_TP)
        box = Box((6, 0), (2, 2))
        assert local_shard("w", shard) == LocalShard(
            "int64", (8, 2), (ShardPart(box, Box((0, 0), (2, 2))),)
        )


@pytest.mark.xfail(
    not is_shard_order_known(), reason="before torch 2.11 a _StridedShard cuts otherwise"
)
def test_a_shard_may_be_several_parts() -> None:
    with rank_of(4, 3):
        mesh = init_device_mesh("cpu", (2, 2))
        shard = cut(numbered((8, 2)), mesh, (Replicate(), _StridedShard(0, split_factor=2)))
        assert local_shard("w", shard) == LocalShard(
            "int64",
            (8, 2),
            (
                ShardPart(Box((2, 0), (2, 2)), Box((0, 0), (2, 2))),
                ShardPart(Box((6, 0), (2, 2)), Box((2, 0), (2, 2))),
            ),
        )


def test_a_plain_tensor_is_held_whole() -> None:
    box, scalar = Box((0, 0), (3, 2)), Box((), ())
    assert local_shard("w", torch.zeros(3, 2)) == LocalShard(
        "float32", (3, 2), (ShardPart(box, box),)
    )
    assert local_shard("n", torch.tensor(1)) == LocalShard(
        "int64", (), (ShardPart(scalar, scalar),)
    )
    assert local_shard("p", torch.nn.Parameter(torch.zeros(0, 2))) == LocalShard(
        "float32", (0, 2), ()
    )


# --- any layout ---------------------------------------------------------------------------------

SIZES = [(2,), (3,), (4,), (2, 2), (2, 3), (4, 2), (1, 3), (2, 2, 2), (2, 1, 3)]


@contextmanager
def mesh_of(size: tuple[int, ...]) -> Iterator[DeviceMesh]:
    """A mesh of this size, seen from rank 0."""
    with rank_of(math.prod(size), 0):
        yield init_device_mesh("cpu", size)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Placement, ...]]:
    """Shape, size of the mesh, placements."""
    shape = tuple(draw(st.lists(st.integers(0, 17), min_size=1, max_size=3)))
    dims = st.integers(0, len(shape) - 1)
    placement = st.one_of(
        st.just(Replicate()),
        dims.map(Shard),
        dims.map(Shard),
        st.tuples(dims, st.integers(2, 6)).map(lambda x: _StridedShard(x[0], split_factor=x[1])),
    )
    size = draw(st.sampled_from(SIZES))
    return shape, size, tuple(draw(placement) for _ in size)


def spread(spec: DTensorSpec) -> DTensor:
    """A DTensor of which only the description counts."""
    return DTensor(torch.empty(0), spec, requires_grad=False)  # type: ignore[no-untyped-call]


def meta(shape: tuple[int, ...]) -> TensorMeta:
    return TensorMeta(torch.Size(shape), torch.empty(shape, device="meta").stride(), torch.float32)


def check_all_ranks(tensor: DTensor, order: Sequence[int], plain: bool) -> None:
    """Of every rank of the mesh, what the layout says, against torch's cutting by one placement
    after the other.

    Args:
        order: the mesh dimensions that cut.
        plain: take a _StridedShard for a Shard.
    """
    full, mesh = numbered(tensor.shape), tensor.device_mesh
    layout = structure({"w": tensor}, ()).tensors["w"]
    for coordinate in product(*map(range, mesh.shape)):
        local = full
        for mesh_dim in order:
            placement = tensor.placements[mesh_dim]
            if isinstance(placement, Shard | _StridedShard):
                cutting = Shard(placement.dim) if plain else placement
                shards, _ = cutting._split_tensor(local, mesh.size(mesh_dim), with_padding=False)
                local = shards[coordinate[mesh_dim]]
        at = [coordinate[cut.mesh_dim] for cut in layout.cuts]
        cells = Cells(layout.shape, layout.cuts, at)
        assert cells.local_shape == tuple(local.shape)
        assert torch.equal(filled(full, cells.parts, local.shape), local)


has_orders = pytest.mark.xfail(
    not hasattr(specs, "ShardOrderEntry"),
    raises=AttributeError,
    reason="before torch 2.10 a DTensor has no order of its shards beside its placements",
)


@has_orders
@settings(deadline=None)
@given(layout=layouts())
def test_any_placements_are_cut_as_torch_cuts(
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[Placement, ...]],
) -> None:
    """Where _StridedShards stand for an order, in that order, as torch puts them together."""
    shape, size, placements = layout
    with mesh_of(size) as mesh:
        order = DTensorSpec._maybe_convert_StridedShard_to_shard_order(placements, mesh)
        tensor = spread(DTensorSpec(mesh, placements, meta(shape)))
        if order is None and not is_shard_order_known():
            with pytest.raises(TypeError, match=r"cannot save 'w': torch .* may divide"):
                structure({"w": tensor}, ())
        elif order is None:
            check_all_ranks(tensor, range(len(size)), plain=False)
        else:
            check_all_ranks(tensor, [dim for entry in order for dim in entry.mesh_dims], plain=True)


@has_orders
@settings(deadline=None)
@given(st.data())
def test_an_order_of_its_own_is_kept(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([size for size in SIZES if len(size) > 1]))
    shape = tuple(data.draw(st.lists(st.integers(0, 17), min_size=1, max_size=2)))
    placements = tuple(Shard(data.draw(st.integers(0, len(shape) - 1))) for _ in size)
    found = []
    for dim in range(len(shape)):
        mesh_dims = [i for i, placement in enumerate(placements) if placement.dim == dim]
        if mesh_dims:
            found.append(specs.ShardOrderEntry(dim, tuple(data.draw(st.permutations(mesh_dims)))))
    order = tuple(found)
    with mesh_of(size) as mesh:
        tensor = spread(DTensorSpec(mesh, placements, meta(shape), shard_order=order))
        check_all_ranks(tensor, [dim for entry in order for dim in entry.mesh_dims], plain=True)


# --- what is refused ----------------------------------------------------------------------------


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
            local_shard("w", odd)


@pytest.mark.xfail(
    not hasattr(specs, "ShardOrderEntry"), reason="before torch 2.10 they are cut in that order"
)
def test_uneven_shards_that_were_cut_in_another_order_are_refused() -> None:
    """distribute_tensor() cuts by the word of a _StridedShard; FSDP, and full_tensor(), by the
    order that it stands for. Of uneven shards these are not the same rows."""
    with rank_of(6, 4):
        mesh = init_device_mesh("cpu", (3, 2))
        shard = cut(numbered((13, 1)), mesh, FSDP_AND_TP)
        assert shard.to_local().flatten().tolist() == [6, 11]
        with pytest.raises(TypeError, match=r"cannot save 'w': this rank holds \(2, 1\) of it"):
            local_shard("w", shard)


@pytest.mark.parametrize("shape", [(4, 2), ()])
def test_of_other_ranks_tensors_nothing_is_held(shape: tuple[int, ...]) -> None:
    with rank_of(2, 1):
        mesh = DeviceMesh("cpu", [0])
        local = torch.empty(0)
        stride = tuple(torch.empty(shape).stride())
        away = DTensor.from_local(
            local, mesh, [Replicate()], run_check=False, shape=torch.Size(shape), stride=stride
        )
        assert local_shard("w", away) is None
        assert structure({"w": away}, ()).tensors == {}


# --- structures ---------------------------------------------------------------------------------


def described(rank: int, seed: int = 0, **values: object) -> bytes:
    """The digest of a state of two ranks."""
    with rank_of(2, rank):
        mesh, other = init_device_mesh("cpu", (2,)), DeviceMesh("cpu", [rank])
        tensors = {
            "a": torch.full((3,), float(seed)),
            "b": cut(torch.zeros(4, 2), mesh, [Shard(seed % 2)]),
            "c": cut(torch.zeros(4, 2), mesh, [Replicate()]),
            "d": cut(torch.zeros(4, 2), other, [Shard(0)]),
        }
        first = structure(tensors, values).digest
        again = structure(dict(reversed(tensors.items())), reversed(values)).digest
        assert first == again, "the order in which things are named does not count"
        return first


def test_digests_are_equal_where_states_are_alike() -> None:
    """A tensor that nothing cuts is one that everybody has, on whichever mesh it lies."""
    assert described(0) == described(1) == described(0, seed=2)
    assert described(0) != described(0, seed=1)
    assert described(0) != described(0, lr=0.1)
    assert described(0, a=1, b=2) == described(1, a=2, b=3)
