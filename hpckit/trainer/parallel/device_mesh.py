"""The grid of ranks, and what a rank's place in it means."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hpckit.config.parallel_degrees import NAMES, degrees
from hpckit.config.spec import ParallelSpec

DATA = ("replicate", "shard")
"""Dimensions whose ranks have samples of their own."""


def make_mesh(device: str, parallel: ParallelSpec) -> DeviceMesh:
    """All ranks of this world by the degrees above 1, in the order of
    `hpckit.config.parallel_degrees.NAMES`.

    It always has a dimension of data; where layers are divided too, or this version of torch cannot
    replicate otherwise, that is "shard" at least.
    """
    found = degrees(parallel, dist.get_world_size())
    sizes = {name: getattr(found, name) for name in NAMES}
    used = {name for name in NAMES if sizes[name] > 1}
    if "replicate" not in used or "tensor" in used or not _replicates_alone():
        used.add("shard")
    names = tuple(name for name in NAMES if name in used)
    return init_device_mesh(device, tuple(sizes[name] for name in names), mesh_dim_names=names)


def make_expert_mesh(device: str, parallel: ParallelSpec) -> DeviceMesh:
    """The same ranks with "expert" innermost, which is taken out of those that have samples of
    their own; what these are besides is of data, as of `make_mesh`. Layers are not divided."""
    found = degrees(parallel, dist.get_world_size())
    sizes = {"replicate": found.expert_replicate, "shard": found.expert_shard}
    used = {name: size for name, size in sizes.items() if size > 1}
    if not used or ("shard" not in used and not _replicates_alone()):
        used["shard"] = 1
    used["expert"] = found.expert
    return init_device_mesh(device, tuple(used.values()), mesh_dim_names=tuple(used))


def _replicates_alone() -> bool:
    """Whether torch replicates over a mesh of one dimension, as since 2.10; before, a second one of
    size 1 has to be there, over which nothing is sharded."""
    try:
        from torch.distributed._composable.replicate_with_fsdp import replicate
    except ImportError:
        return False
    return "mesh" in inspect.signature(replicate).parameters


@dataclass(frozen=True)
class MeshCoordinate:
    """Of this rank."""

    data: int
    """Which part of each global batch it takes, of `data_size`."""
    data_size: int
    is_first: bool
    """Whether it is the first of the ranks that take this part."""
    copies: int
    """How many of these there are."""


def place_in(mesh: DeviceMesh) -> MeshCoordinate:
    """This rank's."""
    names = mesh.mesh_dim_names or ()
    others = [name for name in names if name not in DATA]
    data = 0
    for name in names:
        if name in DATA:
            data = data * mesh[name].size() + mesh.get_local_rank(name)
    size = data_mesh(mesh).size()
    is_first = all(mesh.get_local_rank(name) == 0 for name in others)
    return MeshCoordinate(data, size, is_first, mesh.size() // size)


def stage_of(mesh: DeviceMesh) -> int:
    """Which group of layers this rank has: those of one have as much to compute as each other."""
    return int(mesh.get_local_rank("pipeline")) if has(mesh, "pipeline") else 0


def data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The ranks that differ from this one in their samples alone: "replicate", "shard" or both."""
    names = tuple(name for name in DATA if has(mesh, name))
    return mesh[names[0]] if len(names) == 1 else mesh[names]


def size_of(mesh: DeviceMesh, name: str) -> int:
    """Ranks along this dimension, which the mesh need not have."""
    return int(mesh[name].size()) if has(mesh, name) else 1


def has(mesh: DeviceMesh, name: str) -> bool:
    """Whether the mesh has this dimension."""
    return name in (mesh.mesh_dim_names or ())
