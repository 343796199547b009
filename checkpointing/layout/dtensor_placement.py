"""Derives what a rank holds of a tensor from its mesh and placements."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from checkpointing.distributed_classes import is_dtensor
from checkpointing.format.element_types import element
from checkpointing.format.tiles import Shape
from checkpointing.format.torch_dtypes import dtype_name
from checkpointing.layout.tensor_layout import Cells, Cut, Mesh, ShardPart, Structure, TensorLayout
from checkpointing.torch_internals import held_tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


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
    if not is_dtensor(tensor):
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
    if not is_dtensor(tensor):
        return _whole(tensor.dtype, tensor.shape)
    cuts, mesh = _cuts(name, tensor), tensor.device_mesh
    if mesh.get_coordinate() is None:
        return None
    if not cuts:
        return _whole(tensor.dtype, tensor.shape)
    return TensorLayout(dtype_name(tensor.dtype), tuple(tensor.shape), cuts, meshes.number(mesh))


@lru_cache(1 << 12)  # a model has few shapes, and many tensors of each
def _whole(dtype: torch.dtype, shape: torch.Size) -> TensorLayout:
    return TensorLayout(dtype_name(dtype), tuple(shape))


def _cuts(name: str, tensor: DTensor) -> tuple[Cut, ...]:
    """Returns the cuts of the tensor's placements, by a module that is only imported where there is
    a DTensor; raises as `dtensor_cuts.cuts`."""
    from checkpointing.layout.dtensor_cuts import cuts

    return cuts(name, tensor)
