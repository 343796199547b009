"""Every layout that tensors can have is restored onto every other, bit for bit."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard

from checkpointing import Checkpointer
from checkpointing.staging import local
from tests.integration.damage import check
from tests.integration.worlds import assert_same, run_world, seeded, whole

Layout = tuple[tuple[int, ...], tuple[Placement, ...]]  # of the mesh, over it

FSDP_AND_TP = (_StridedShard(0, split_factor=2), Shard(0))
LAYOUTS: dict[int, list[Layout]] = {
    1: [((1,), (Shard(0),)), ((1,), (Replicate(),))],
    2: [((2,), (Shard(0),)), ((2,), (Shard(1),)), ((2,), (Replicate(),))],
    3: [((3,), (Shard(0),)), ((3,), (Shard(1),)), ((3, 1), (Shard(1), Shard(0)))],
    4: [
        ((4,), (Shard(0),)),
        ((4,), (Shard(1),)),
        ((2, 2), (Replicate(), Shard(0))),
        ((2, 2), FSDP_AND_TP),
        ((2, 2), (Shard(0), Shard(1))),
        ((2, 2), (Shard(1), Replicate())),
    ],
}
SHAPES = [(8, 8), (7, 5), (2, 9), (64, 1030)]  # the last one has several tiles in complex64
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.uint8]


def any_bits(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of random bits, NaNs with payloads among them; the same in every process."""
    width = dtype.itemsize
    flat = torch.randint(0, 256, (*shape, width), dtype=torch.uint8, generator=seeded(width))
    return flat.view(dtype).reshape(shape)


def spread(world_size: int, turn: int, blank: bool) -> dict[str, torch.Tensor]:
    """This rank's shards of all shapes and dtypes in all layouts that this world size has.

    Args:
        turn: tensors change their layouts with it.
        blank: zeros instead of the bits.
    """
    layouts = LAYOUTS[world_size]
    meshes = {sizes: init_device_mesh("cpu", sizes) for sizes in {sizes for sizes, _ in layouts}}
    shards: dict[str, torch.Tensor] = {}
    for i, (shape, dtype, copy) in enumerate(itertools.product(SHAPES, DTYPES, range(6))):
        sizes, placements = layouts[(copy + turn) % len(layouts)]
        full = any_bits(shape, dtype)
        full = torch.zeros_like(full) if blank else full
        shards[f"t{i}"] = distribute_tensor(full, meshes[sizes], placements, src_data_rank=None)
    return shards


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    mine, theirs = (local(t).contiguous().view(torch.uint8) for t in (one, other))
    return torch.equal(mine, theirs)


def save_layouts(rank: int, tmp: Path) -> None:
    ckpt = Checkpointer(tmp / "store", run="r")
    ckpt.save(1, {"t": spread(dist.get_world_size(), turn=0, blank=False)})
    ckpt.close()


def restore_layouts(rank: int, tmp: Path) -> None:
    world_size = dist.get_world_size()
    ckpt = Checkpointer(tmp / "store", run="r")
    for turn in range(2):
        state = {"t": spread(world_size, turn, blank=True)}
        assert ckpt.restore(state) == 1
        expected = spread(world_size, turn, blank=False)
        wrong = [name for name in expected if not same_bits(state["t"][name], expected[name])]
        assert wrong == []
    ckpt.close()


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_layout_is_restored_onto_every_other(tmp_path: Path, world_size: int) -> None:
    run_world(world_size, save_layouts, tmp_path)
    assert check(tmp_path / "store") == {1: []}
    for other in (1, 2, 3, 4):
        run_world(other, restore_layouts, tmp_path)


# --- tensor parallelism and HSDP as torch itself lays them out ------------------------------------


def parallel_state(seed: int, kind: str) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))
    if kind == "fsdp+tp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan)
        fully_shard(model, mesh=mesh["dp"])
        placements = model.get_parameter("0.weight").placements  # type: ignore[attr-defined]
        assert isinstance(placements[0], _StridedShard)
    elif kind == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "shard")))
    elif kind == "fsdp":
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {"model": model, "optimizer": optimizer}


def step_once(state: dict[str, Any]) -> None:
    state["model"](torch.randn(4, 8, generator=seeded(7))).square().mean().backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()


def save_parallel(kind: str, rank: int, tmp: Path) -> dict[str, torch.Tensor]:
    state = parallel_state(1, kind)
    step_once(state)
    ckpt = Checkpointer(tmp / kind, run="r")
    ckpt.save(1, state)
    ckpt.close()
    return whole(state)


def restore_parallel(kind: str, saved: str, rank: int, tmp: Path) -> dict[str, torch.Tensor]:
    state = parallel_state(2, kind)
    ckpt = Checkpointer(tmp / saved, run="r")
    assert ckpt.restore(state) == 1
    ckpt.close()
    restored = whole(state)
    step_once(state)  # what was restored can be trained on
    return restored


def test_fsdp_with_tensor_parallelism_and_hsdp_go_over_into_each_other(tmp_path: Path) -> None:
    for saved, other in (("fsdp+tp", "hsdp"), ("hsdp", "fsdp+tp")):
        expected = run_world(4, partial(save_parallel, saved), tmp_path)[0]
        assert check(tmp_path / saved) == {1: []}
        for world_size, kind in ((4, other), (2, "fsdp"), (1, "plain")):
            for restored in run_world(world_size, partial(restore_parallel, kind, saved), tmp_path):
                assert_same(restored, expected)
