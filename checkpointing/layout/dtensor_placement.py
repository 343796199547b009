"""Derives what a rank holds of a tensor from its mesh and placements."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from checkpointing.format.element_types import element
from checkpointing.format.tiles import Shape
from checkpointing.format.torch_dtypes import dtype_name
from checkpointing.layout.tensor_layout import Cells, Cut, Mesh, ShardPart, Structure, TensorLayout
from checkpointing.torch_internals import IS_SHARD_ORDER_KNOWN, StridedShard, held_tensor, spec_of


@dataclass(frozen=True)
class LocalShard:
    """What one rank holds of one tensor."""

    dtype: str
    shape: Shape  # shape of the whole tensor
    parts: tuple[ShardPart, ...]  # usually one; none if the rank's shard is empty

    @property
    def bytes(self) -> int:
        return sum(part.box.count for part in self.parts) * element(self.dtype).itemsize


def local_shard(name: str, tensor: Tensor) -> LocalShard | None:
    """Returns what this rank holds of `tensor`: its shard of a DTensor, or all of another tensor;
    None if only other ranks hold the tensor.

    Raises:
        TypeError: it is a partial sum, or does not match its placements.
    """
    dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return LocalShard(dtype, shape, Cells(shape, (), ()).parts)
    cuts = _cuts(name, tensor)
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    cells = Cells(shape, cuts, [coordinate[cut.mesh_dim] for cut in cuts])
    if (there := tuple(held_tensor(tensor).shape)) != cells.local_shape:
        raise TypeError(
            f"cannot save {name!r}: this rank holds {there} of it, but its placements "
            f"{tensor.placements} mean {cells.local_shape}; redistribute it first"
        )
    return LocalShard(dtype, shape, cells.parts)


def parts_at(tensor: DTensor, coordinate: Sequence[int]) -> tuple[ShardPart, ...]:
    """Returns what the rank at this coordinate of the tensor's mesh holds of it."""
    cuts = _cuts("a tensor", tensor)
    return Cells(tuple(tensor.shape), cuts, [coordinate[cut.mesh_dim] for cut in cuts]).parts


def structure(
    tensors: Mapping[str, Tensor], values: Iterable[str], whole: Collection[str] = ()
) -> Structure:
    """Returns the structure of this rank's state, without tensors that only other ranks hold.

    Args:
        whole: names of tensors that one rank saves, see `TensorLayout.is_whole`.

    Raises:
        TypeError: a tensor is a partial sum.
    """
    layouts, meshes = {}, _Meshes()
    for name in sorted(tensors):  # sorted, so that meshes get the same numbers on all ranks
        if (layout := _layout(name, tensors[name], meshes)) is not None:
            layouts[name] = replace(layout, is_whole=True) if name in whole else layout
    return Structure.of(layouts, meshes.found, values)


class _Meshes:
    """Plain copies of the meshes of one state, of which there are few."""

    def __init__(self) -> None:
        self.found: list[Mesh] = []
        self._numbers: dict[int, tuple[DeviceMesh, int]] = {}

    def number(self, mesh: DeviceMesh) -> int:
        """Returns the index of the mesh among those found so far."""
        if id(mesh) not in self._numbers:
            copy = Mesh.of(mesh.shape, mesh.mesh.flatten().tolist())
            if copy not in self.found:
                self.found.append(copy)
            self._numbers[id(mesh)] = mesh, self.found.index(copy)
        return self._numbers[id(mesh)][1]


def _layout(name: str, tensor: Tensor, meshes: _Meshes) -> TensorLayout | None:
    dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return TensorLayout(dtype, shape)
    cuts, mesh = _cuts(name, tensor), tensor.device_mesh
    if mesh.get_coordinate() is None:
        return None
    return (
        TensorLayout(dtype, shape, cuts, meshes.number(mesh))
        if cuts
        else TensorLayout(dtype, shape)
    )


def _cuts(name: str, tensor: DTensor) -> tuple[Cut, ...]:
    """Returns the cuts of the tensor's placements, in their order, without those that change
    nothing."""
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
        order = _decoded(spec.placements, tensor.device_mesh.shape)
        if order is not None:
            return [(mesh_dim, False) for mesh_dim in order]
        if not IS_SHARD_ORDER_KNOWN:
            raise TypeError(
                f"cannot save {name!r}: torch {torch.__version__} may divide {spec.placements} "
                "differently from torch 2.11 and newer; redistribute it first"
            )
        return [(i, True) for i, p in enumerate(spec.placements) if _dim(p) is not None]
    return [(mesh_dim, True) for entry in spec.shard_order for mesh_dim in entry.mesh_dims]


def _decoded(placements: Sequence[Placement], sizes: Sequence[int]) -> list[int] | None:
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
