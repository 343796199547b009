"""The device mesh, and the meaning of a rank's coordinate in it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hpckit.config.parallel_degrees import NAMES, degrees
from hpckit.config.spec import ParallelSpec

DATA = ("replicate", "shard")
"""The dimensions whose ranks have samples of their own."""


def make_mesh(device: str, parallel: ParallelSpec) -> DeviceMesh:
    """Make a mesh of all ranks with a dimension for each degree above 1, in the order of
    `hpckit.config.parallel_degrees.NAMES`.

    It always has a dimension of data. If layers are divided too, or this version of torch cannot
    replicate otherwise, that includes "shard".
    """
    found = degrees(parallel, dist.get_world_size())
    sizes = {name: getattr(found, name) for name in NAMES}
    used = {name for name in NAMES if sizes[name] > 1}
    if "replicate" not in used or "tensor" in used or not _replicates_alone():
        used.add("shard")
    names = tuple(name for name in NAMES if name in used)
    return init_device_mesh(device, tuple(sizes[name] for name in names), mesh_dim_names=names)


def make_expert_mesh(device: str, parallel: ParallelSpec) -> DeviceMesh:
    """Make a mesh of the same ranks whose innermost dimension is "expert". Its ranks are taken from
    those that have samples of their own; the remaining degree is of data, as of `make_mesh`. Layers
    are not divided."""
    found = degrees(parallel, dist.get_world_size())
    sizes = {"replicate": found.expert_replicate, "shard": found.expert_shard}
    used = {name: size for name, size in sizes.items() if size > 1}
    if not used or ("shard" not in used and not _replicates_alone()):
        used["shard"] = 1
    used["expert"] = found.expert
    return init_device_mesh(device, tuple(used.values()), mesh_dim_names=tuple(used))


def _replicates_alone() -> bool:
    """Whether torch replicates over a mesh of one dimension, as since 2.10. Before, a second
    dimension of size 1 has to be there, over which nothing is sharded."""
    try:
        from torch.distributed._composable.replicate_with_fsdp import replicate
    except ImportError:
        return False
    return "mesh" in inspect.signature(replicate).parameters


@dataclass(frozen=True)
class MeshCoordinate:
    """The coordinate of this rank in the mesh."""

    data: int
    """Number of the part of each global batch that the rank takes, of `data_size` parts."""
    data_size: int
    is_first: bool
    """Whether it is the first of the ranks that take this part."""
    copies: int
    """Number of ranks that take this part."""


def place_in(mesh: DeviceMesh) -> MeshCoordinate:
    """Return this rank's coordinate."""
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
    """Return the number of this rank's group of layers; ranks of one group have the same amount of
    computation."""
    return int(mesh.get_local_rank("pipeline")) if has(mesh, "pipeline") else 0


def data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return the mesh of ranks that differ from this one only in their samples: "replicate",
    "shard" or both."""
    names = tuple(name for name in DATA if has(mesh, name))
    return mesh[names[0]] if len(names) == 1 else mesh[names]


def size_of(mesh: DeviceMesh, name: str) -> int:
    """Return the number of ranks along this dimension, 1 if the mesh does not have it."""
    return int(mesh[name].size()) if has(mesh, name) else 1


def has(mesh: DeviceMesh, name: str) -> bool:
    """Whether the mesh has this dimension."""
    return name in (mesh.mesh_dim_names or ())
