"""Which boxes of which tensors a rank holds, and which of them it is to save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from checkpointing.dtypes import dtype_name
from checkpointing.errors import SaveError
from checkpointing.format.elements import element
from checkpointing.format.tiles import Box, Shape, whole


@dataclass(frozen=True)
class Held:
    """What one rank holds of one tensor. Plain data: it travels between ranks."""

    dtype: str
    shape: Shape  # of the whole tensor
    box: Box

    @property
    def bytes(self) -> int:
        return self.box.count * element(self.dtype).itemsize


def held(name: str, tensor: Tensor) -> Held | None:
    """What this rank holds of `tensor`: its shard of a DTensor, and all of any other; None of one
    that lies on other ranks alone.

    Raises:
        TypeError: the tensor is spread in a way that has no boxes.
    """
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return Held(dtype_name(tensor.dtype), shape, whole(shape))
    if any(placement.is_partial() for placement in tensor.placements):
        raise TypeError(f"cannot save {name!r}: it is a partial sum; redistribute it first")
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    if not all(_is_box(tensor, coordinate, dim) for dim in range(len(shape))):
        raise TypeError(
            f"cannot save {name!r}: placements {tensor.placements} leave a rank with rows that do "
            "not lie together; redistribute it to Shard() or Replicate() first"
        )
    sizes, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    if (there := tuple(tensor._local_tensor.shape)) != tuple(sizes):
        raise TypeError(
            f"cannot save {name!r}: this rank holds {there} of it, where its placements "
            f"{tensor.placements} say {tuple(sizes)}; redistribute it first"
        )
    return Held(dtype_name(tensor.dtype), shape, Box(tuple(offsets), tuple(sizes)))


def _is_box(tensor: DTensor, coordinate: Sequence[int], dim: int) -> bool:
    """Whether this rank's indices along a dimension lie together: those of a _StridedShard do only
    if the placement that it goes with follows it, as FSDP with tensor parallelism has it."""
    cuts = [(i, p) for i, p in enumerate(tensor.placements) if getattr(p, "dim", None) == dim]
    if not any(isinstance(placement, _StridedShard) for _, placement in cuts):
        return True
    indices = torch.arange(int(tensor.shape[dim]))
    for mesh_dim, placement in cuts:
        ranks, mine = tensor.device_mesh.shape[mesh_dim], coordinate[mesh_dim]
        groups = int(placement.split_factor) if isinstance(placement, _StridedShard) else 1
        indices = torch.cat([_cut(group, ranks)[mine] for group in _cut(indices, groups)])
    return not len(indices) or int(indices[-1] - indices[0]) == len(indices) - 1


def _cut(indices: Tensor, parts: int) -> list[Tensor]:
    """In `parts` parts as torch.chunk cuts, the last of them maybe empty."""
    size = max(1, -(-len(indices) // parts))
    return [indices[part * size : (part + 1) * size] for part in range(parts)]


def share(by_rank: Sequence[Mapping[str, Held]]) -> list[set[str]]:
    """Who saves what: a pure function that gives the same answer on every rank.

    A box that several ranks hold is saved by the one of them that has least to save so far, in
    bytes; what only one rank holds is counted first, then the largest boxes are given out first.

    Args:
        by_rank: what each rank holds, by name.

    Returns:
        For each rank the names of the tensors whose boxes it saves.

    Raises:
        SaveError: ranks hold different tensors under one name.
    """
    owners: dict[tuple[str, Box], list[int]] = {}
    sizes: dict[tuple[str, Box], int] = {}
    specs: dict[str, tuple[str, Shape]] = {}
    for rank, tensors in enumerate(by_rank):
        for name, part in tensors.items():
            spec = (part.dtype, part.shape)
            if specs.setdefault(name, spec) != spec:
                raise SaveError(f"{name!r} is {specs[name]} on one rank and {spec} on rank {rank}")
            if part.box.count or 0 in part.shape:
                owners.setdefault((name, part.box), []).append(rank)
                sizes[name, part.box] = part.bytes
    load = [0] * len(by_rank)
    mine: list[set[str]] = [set() for _ in by_rank]
    for held_box in sorted(owners, key=lambda o: (len(owners[o]) > 1, -sizes[o], o)):
        rank = min(owners[held_box], key=lambda r: (load[r], r))
        load[rank] += sizes[held_box]
        mine[rank].add(held_box[0])
    return mine
