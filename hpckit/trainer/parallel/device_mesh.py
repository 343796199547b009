"""The device mesh of all ranks, and what the coordinate of a rank in it means."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hpckit.config.parallel_degrees import NAMES, degrees
from hpckit.config.spec import ParallelSpec
from hpckit.torch_internals import replicate_over_one_dimension

DATA = ("replicate", "shard")
"""The dimensions of data parallelism, along which ranks have different samples."""


def make_mesh(device: str, parallel: ParallelSpec) -> DeviceMesh:
    """Make a mesh of all ranks with a dimension for each degree above 1, in the order of
    `hpckit.config.parallel_degrees.NAMES`. Collective.

    The mesh always has a dimension of data parallelism. With tensor parallelism, or if this version
    of torch cannot replicate over a single dimension, "shard" is one of them.
    """
    found = degrees(parallel, dist.get_world_size())
    sizes = {name: getattr(found, name) for name in NAMES}
    used = {name for name in NAMES if sizes[name] > 1}
    if "replicate" not in used or "tensor" in used or replicate_over_one_dimension() is None:
        used.add("shard")
    names = tuple(name for name in NAMES if name in used)
    return init_device_mesh(device, tuple(sizes[name] for name in names), mesh_dim_names=names)


def make_expert_mesh(device: str, parallel: ParallelSpec) -> DeviceMesh:
    """Make a mesh of all ranks whose innermost dimension is "expert", beside dimensions of data
    parallelism as of `make_mesh`. It is for models without tensor parallelism. Collective."""
    found = degrees(parallel, dist.get_world_size())
    sizes = {"replicate": found.expert_replicate, "shard": found.expert_shard}
    used = {name: size for name, size in sizes.items() if size > 1}
    if not used or ("shard" not in used and replicate_over_one_dimension() is None):
        used["shard"] = 1
    used["expert"] = found.expert
    return init_device_mesh(device, tuple(used.values()), mesh_dim_names=tuple(used))


@dataclass(frozen=True)
class MeshCoordinate:
    """The coordinate of this rank in the mesh."""

    data: int
    """Number of the part of each global batch that this rank takes."""
    data_size: int
    """Number of parts of a global batch."""
    is_first: bool
    """Whether this rank is the first of those that take the same part."""
    copies: int
    """Number of ranks that take the same part."""


def coordinate_in(mesh: DeviceMesh) -> MeshCoordinate:
    """Return the coordinate of this rank in `mesh`."""
    names = mesh.mesh_dim_names or ()
    others = [name for name in names if name not in DATA]
    data = 0
    for name in names:
        if name in DATA:
            data = data * mesh[name].size() + mesh.get_local_rank(name)
    size = data_mesh(mesh).size()
    is_first = all(mesh.get_local_rank(name) == 0 for name in others)
    return MeshCoordinate(data, size, is_first, mesh.size() // size)


def data_rings(mesh: DeviceMesh) -> list[list[int]]:
    """Return for each part of the model the ranks that have it, in the order of
    `MeshCoordinate.data`."""
    names = mesh.mesh_dim_names or ()
    order = [*(n for n in names if n not in DATA), *(n for n in names if n in DATA)]
    ranks = mesh.mesh.permute([names.index(name) for name in order])
    rings: list[list[int]] = ranks.reshape(-1, data_mesh(mesh).size()).tolist()
    return rings


def stage_of(mesh: DeviceMesh) -> int:
    """Return the number of this rank's pipeline stage, 0 without a pipeline; the ranks of a stage
    have the same amount of computation."""
    return int(mesh.get_local_rank("pipeline")) if has(mesh, "pipeline") else 0


def data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return the submesh of the dimensions of data parallelism: "replicate", "shard" or both."""
    names = tuple(name for name in DATA if has(mesh, name))
    return mesh[names[0]] if len(names) == 1 else mesh[names]


def size_of(mesh: DeviceMesh, name: str) -> int:
    """Return the number of ranks along this dimension, 1 if the mesh does not have it."""
    return int(mesh[name].size()) if has(mesh, name) else 1


def has(mesh: DeviceMesh, name: str) -> bool:
    """Whether the mesh has this dimension."""
    return name in (mesh.mesh_dim_names or ())
