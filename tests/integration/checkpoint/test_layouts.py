"""Every layout that tensors can have, on worlds of every size, is restored onto every other, bit
for bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard

from checkpointing import Checkpointer
from checkpointing.staging.staging_buffers import local
from tests.effort import some
from tests.integration.checkpoint.store_damage import check
from tests.integration.rank_worlds import assert_same, meet, run_worlds, seeded, whole
from tests.integration.service.running_services import kept

WORLDS = some([1, 3, 4], [2, 8])
"""All at the same time, each on a store of its own, since a job takes over the store that it
opens."""
KINDS = ["ddp", "fsdp", "hsdp", "tp", "fsdp+tp"]
SHAPES = [(8, 8), (7, 5), (2, 9), (3, 0), (64, 1030)]  # the last has several tiles in complex64
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.uint8]


def meshes() -> dict[str, DeviceMesh]:
    """For each kind of parallelism, over all ranks."""
    world_size = dist.get_world_size()
    tp = 2 if world_size % 2 == 0 else world_size
    flat, pairs = (world_size,), (world_size // tp, tp)
    return {
        "fsdp": init_device_mesh("cpu", flat),
        "hsdp": init_device_mesh("cpu", pairs, mesh_dim_names=("replicas", "shards")),
        "tp": init_device_mesh("cpu", flat),
        "fsdp+tp": init_device_mesh("cpu", pairs, mesh_dim_names=("dp", "tp")),
    }


def turns() -> Iterator[tuple[int, str]]:
    """The world whose store comes next, so that each has another one; and a name for the turn."""
    mine = WORLDS.index(dist.get_world_size())
    for turn in range(len(WORLDS)):
        yield WORLDS[(mine + turn) % len(WORLDS)], f"turn-{turn}"


# --- tensors, spread as each kind of parallelism spreads them -------------------------------------


class Spreader:
    """This rank's shards. Meshes are made once: making one is a collective."""

    def __init__(self) -> None:
        self._meshes = meshes()

    def spread(self, full: torch.Tensor, kind: str, dim: int) -> torch.Tensor:
        """
        Args:
            dim: that tensor parallelism cuts.
        """
        if kind == "ddp":
            return full.clone()
        placements: dict[str, tuple[Placement, ...]] = {
            "fsdp": (Shard(0),),
            "tp": (Shard(dim),),
            "hsdp": (Replicate(), Shard(0)),
            "fsdp+tp": (Shard(0), Shard(1)),
        }
        if kind == "fsdp+tp" and dim == 0:
            tp = self._meshes[kind].size(1)
            placements[kind] = (_StridedShard(0, split_factor=tp) if tp > 1 else Shard(0), Shard(0))
        return distribute(full, self._meshes[kind], placements[kind])


def distribute(full: torch.Tensor, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
    """As torch's parallel modules do it: what tensor parallelism has cut, FSDP cuts again."""
    coordinate, shard = mesh.get_coordinate(), full
    assert coordinate is not None
    for mesh_dim in reversed(range(mesh.ndim)):
        placement = placements[mesh_dim]
        if isinstance(placement, Shard | _StridedShard):
            size, index = shard.shape[placement.dim], coordinate[mesh_dim]
            extent = -(-size // mesh.size(mesh_dim))
            start = min(index * extent, size)
            shard = shard.narrow(placement.dim, start, min(extent, size - start))
    return DTensor.from_local(
        shard.clone(memory_format=torch.contiguous_format),
        mesh,
        placements,
        run_check=False,
        shape=full.shape,
        stride=full.stride(),
    )


@cache
def any_bits(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of random bits, NaNs with payloads among them; the same in every process."""
    width = dtype.itemsize
    flat = torch.randint(0, 256, (*shape, width), dtype=torch.uint8, generator=seeded(width))
    return flat.view(dtype).reshape(shape)


def tensors(spreader: Spreader, *, saving: bool, blank: bool) -> dict[str, torch.Tensor]:
    """Shards of all shapes, in turn of all dtypes, for every two kinds: saved as the first of them,
    restored as the second. And scalars, which are never cut."""
    shards = {}
    every = itertools.product(KINDS, KINDS, enumerate(SHAPES))
    for i, (first, second, (number, shape)) in enumerate(every):
        dtype = DTYPES[(i + number) % len(DTYPES)]
        full = torch.zeros(shape, dtype=dtype) if blank else any_bits(shape, dtype)
        kind = first if saving else second
        shards[f"{first} to {second} {shape}"] = spreader.spread(full, kind, dim=i % 2)
    return {**shards, "scalar": torch.tensor(0.0 if blank else 0.1)}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    mine, theirs = (local(t).contiguous() for t in (one, other))
    return mine.shape == theirs.shape and torch.equal(as_bytes(mine), as_bytes(theirs))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def save_and_restore_tensors(rank: int, tmp: Path) -> list[str]:
    """What was not restored as it was saved."""
    spreader, world_size = Spreader(), dist.get_world_size()
    ckpt = Checkpointer(tmp / str(world_size), run="r")
    ckpt.save(1, {"t": tensors(spreader, saving=True, blank=False)})
    ckpt.close()
    meet(tmp, "saved", WORLDS)
    expected = tensors(spreader, saving=False, blank=False)
    wrong = []
    for saved, turn in turns():
        state = {"t": tensors(spreader, saving=False, blank=True)}
        ckpt = Checkpointer(tmp / str(saved), run="r")
        assert ckpt.restore(state) == 1
        ckpt.close()
        wrong += [
            f"saved on {saved}: {name}"
            for name in expected
            if not same_bits(state["t"][name], expected[name])
        ]
        meet(tmp, turn, WORLDS)
    return wrong


def test_every_layout_of_every_world_is_restored_onto_every_other(tmp_path: Path) -> None:
    with kept(tmp_path / str(world_size) for world_size in WORLDS):
        found = run_worlds(WORLDS, save_and_restore_tensors, tmp_path)
    assert found == {world_size: [[]] * world_size for world_size in WORLDS}
    for world_size in WORLDS:
        assert check(tmp_path / str(world_size)) == {1: []}


# --- modules and their optimizers, as torch itself spreads them -----------------------------------


def make(mesh: DeviceMesh | None, kind: str, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 5))
    if mesh is not None and kind.endswith("tp"):
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, mesh["tp"] if mesh.ndim == 2 else mesh, plan)
    if mesh is not None and kind != "tp":
        fully_shard(model, mesh=mesh["dp"] if kind == "fsdp+tp" else mesh)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01)}


def step_once(state: dict[str, Any]) -> None:
    state["model"](torch.randn(4, 8, generator=seeded(7))).square().mean().backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()


def make_uneven(mesh: DeviceMesh, seed: int) -> nn.Module:
    """Rows that neither tensor parallelism nor FSDP can cut evenly."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 13))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    return model


def state_of(made: dict[str, dict[str, Any]], uneven: nn.Module) -> dict[str, Any]:
    state: dict[str, Any] = {"uneven": uneven}
    for kind, one in made.items():
        state |= {kind: one["model"], f"optimizer.{kind}": one["optimizer"]}
    return state


def content(made: dict[str, dict[str, Any]], uneven: nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor, unsharded."""
    found = {f"{kind}/{name}": t for kind, one in made.items() for name, t in whole(one).items()}
    weights = {name: t for name, t in uneven.state_dict().items() if isinstance(t, DTensor)}
    assert weights
    return found | {f"uneven/{name}": t.full_tensor() for name, t in weights.items()}


def save_and_restore_modules(rank: int, tmp: Path) -> None:
    world_size, over = dist.get_world_size(), meshes()
    made = {kind: make(over.get(kind), kind, seed=world_size) for kind in KINDS}
    for one in made.values():
        step_once(one)
    uneven = make_uneven(over["fsdp+tp"], seed=world_size)
    ckpt = Checkpointer(tmp / str(world_size), run="r")
    ckpt.save(1, state_of(made, uneven))
    ckpt.close()
    saved_content = content(made, uneven)
    if rank == 0:
        torch.save(saved_content, tmp / f"{world_size}.pt")
    meet(tmp, "saved", WORLDS)
    for number, (saved, turn) in enumerate(turns()):
        others = [*KINDS[number:], *KINDS[:number]]  # what was one kind becomes another
        made = {
            was: make(over.get(kind), kind, seed=100)
            for was, kind in zip(KINDS, others, strict=True)
        }
        uneven = make_uneven(over["fsdp+tp"], seed=100)
        ckpt = Checkpointer(tmp / str(saved), run="r")
        assert ckpt.restore(state_of(made, uneven)) == 1
        ckpt.close()
        assert_same(content(made, uneven), torch.load(tmp / f"{saved}.pt"))
        for one in made.values():
            step_once(one)  # what was restored can be trained on
        meet(tmp, turn, WORLDS)


def test_models_and_optimizers_go_over_into_other_worlds_and_kinds(tmp_path: Path) -> None:
    with kept(tmp_path / str(world_size) for world_size in WORLDS):
        run_worlds(WORLDS, save_and_restore_modules, tmp_path)
    for world_size in WORLDS:
        assert check(tmp_path / str(world_size)) == {1: []}
