"""Meshes over the ranks of the present world, made once for each: making one is a collective."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

_made: dict[str, DeviceMesh] = {}


def mesh_of(kind: str) -> DeviceMesh | None:
    """For a wrapping; None for those that need none."""
    if kind in ("plain", "ddp"):
        return None
    if kind not in _made:
        size = dist.get_world_size()
        of_two = 2 if size % 2 == 0 else 1
        shapes: dict[str, tuple[tuple[int, ...], tuple[str, ...] | None]] = {
            "fsdp": ((size,), None),
            "tp": ((size,), None),
            "hsdp": ((size // of_two, of_two), ("replicas", "shards")),
            "fsdp+tp": ((size // of_two, of_two), ("dp", "tp")),
        }
        shape, names = shapes[kind]
        _made[kind] = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return _made[kind]


def forget() -> None:
    """Those of a world that has ended; torch keeps the ones that its DTensors had, too."""
    _made.clear()
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
