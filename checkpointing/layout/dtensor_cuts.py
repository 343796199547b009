"""Derives how the placements of a DTensor cut it. Imports torch's module of DTensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from checkpointing.layout.tensor_layout import Cut
from checkpointing.torch_internals import StridedShard, is_shard_order_known, spec_of


def cuts(name: str, tensor: DTensor) -> tuple[Cut, ...]:
    """Returns the cuts of the tensor's placements, in their order, without those that change
    nothing.

    Raises:
        TypeError: it is a partial sum, or its order of shards is not known.
    """
    placements, sizes = tensor.placements, tensor.device_mesh.shape
    for placement in placements:
        if not isinstance(placement, Shard | StridedShard | Replicate):
            what = "a partial sum" if placement.is_partial() else f"placed as {placement}"
            raise TypeError(f"cannot save {name!r}: it is {what}; redistribute it first")
    made = []
    for mesh_dim, is_strided in _order(name, tensor):
        placement, parts = placements[mesh_dim], int(sizes[mesh_dim])
        assert isinstance(placement, Shard | StridedShard)
        groups = 1
        if is_strided and isinstance(placement, StridedShard):
            groups = int(placement.split_factor)
        if parts > 1:
            made.append(Cut(mesh_dim, int(placement.dim), parts, groups))
    return tuple(sorted(made, key=lambda cut: cut.dim))


def _order(name: str, tensor: DTensor) -> list[tuple[int, bool]]:
    """Returns the mesh dimensions that cut, in order, and whether a StridedShard is taken
    literally. Usually it is not: FSDP with tensor parallelism uses it to say that the shards of a
    mesh dimension to the right were cut first; where they are uneven, the two meanings differ."""
    spec = spec_of(tensor)
    by_placements = getattr(spec, "use_strided_shard_as_shard_order", None)
    if by_placements is None:  # before torch 2.11; before 2.10 no other order is possible
        has_strided = any(isinstance(p, StridedShard) for p in spec.placements)
        by_placements = has_strided or not hasattr(spec, "shard_order")
    if by_placements:
        order = decoded_order(spec.placements, tensor.device_mesh.shape)
        if order is not None:
            return [(mesh_dim, False) for mesh_dim in order]
        if not is_shard_order_known():
            raise TypeError(
                f"cannot save {name!r}: torch {torch.__version__} may divide {spec.placements} "
                "differently from torch 2.11 and newer; redistribute it first"
            )
        return [(i, True) for i, p in enumerate(spec.placements) if _dim(p) is not None]
    return [(mesh_dim, True) for entry in spec.shard_order for mesh_dim in entry.mesh_dims]


def decoded_order(placements: Sequence[Placement], sizes: Sequence[int]) -> list[int] | None:
    """Returns the order that StridedShards encode: each follows as many shards, of those to its
    right, as its factor says. None if they encode no order."""
    orders: dict[int, list[int]] = {}
    for mesh_dim in reversed(range(len(placements))):
        placement = placements[mesh_dim]
        if (dim := _dim(placement)) is None:
            continue
        order = orders.setdefault(dim, [])
        factor = int(placement.split_factor) if isinstance(placement, StridedShard) else 1
        before = 1  # number of shards
        for position in range(len(order) + 1):
            if before == factor:
                order.insert(position, mesh_dim)
                break
            if position < len(order):
                before *= int(sizes[order[position]])
        else:
            return None
    return [mesh_dim for order in orders.values() for mesh_dim in order]


def _dim(placement: Placement) -> int | None:
    return int(placement.dim) if isinstance(placement, Shard | StridedShard) else None
