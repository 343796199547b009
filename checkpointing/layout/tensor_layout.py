"""Describes how a tensor is sharded over a mesh of ranks, and which boxes of it each rank holds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from checkpointing.format.element_types import element
from checkpointing.format.tiles import Box, Shape

Counts = NDArray[np.int64]


class ShardPart(NamedTuple):
    """Cells of a tensor that one rank holds, which are contiguous both in the whole tensor and in
    the rank's local tensor."""

    box: Box  # box in the global index space
    local: Box  # box in the local tensor, of the same sizes


class Cut(NamedTuple):
    """A cut of a tensor dimension along a mesh dimension, as torch.chunk cuts.

    With several groups, the indices are first cut into the groups, and each group into `parts`; a
    rank has its part of every group, one after the other.
    """

    mesh_dim: int
    dim: int
    parts: int  # the size of the mesh dimension
    groups: int = 1


class IndexRange(NamedTuple):
    """A range of consecutive indices of a dimension."""

    start: int
    length: int


@dataclass(frozen=True)
class Mesh:
    """A grid of ranks. Two meshes are equal if their keys are equal."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...] = field(compare=False, repr=False)  # row-major
    key: str  # a hash of shape and ranks

    @classmethod
    def of(cls, shape: Sequence[int], ranks: Sequence[int]) -> Mesh:
        return cls(tuple(shape), tuple(ranks), _hash([tuple(shape), tuple(ranks)]).hex())


@dataclass(frozen=True)
class TensorLayout:
    """The dtype, the shape and the cuts of a tensor, which are the same on all ranks that hold a
    part."""

    dtype: str  # torch's name
    shape: Shape  # of the whole tensor
    # the cuts in order, those of lower dimensions first; empty: the tensor is whole
    cuts: tuple[Cut, ...] = ()
    mesh: int | None = None  # index in `Structure.meshes` of the mesh that the cuts are made along
    is_whole: bool = False  # whether one rank saves everything that several ranks hold

    @property
    def itemsize(self) -> int:
        return element(self.dtype).itemsize

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of parts of each cut. Their product is the number of cells, of which each rank
        holds one."""
        return tuple(cut.parts for cut in self.cuts)

    def cell_bytes(self) -> Counts:
        """Returns the bytes of every cell, in the order of `grid`; int64[product of the grid],
        read-only."""
        return _cell_bytes(self.itemsize, self.shape, self.cuts)

    def cell(self, index: int) -> Cells:
        """Returns what the ranks of one cell hold."""
        return _cell(self.shape, self.cuts, index)


@dataclass(frozen=True)
class Structure:
    """The structure of one rank's state. Plain data, which is sent between ranks."""

    # sorted by name: the tensors of which the rank may hold a part
    tensors: Mapping[str, TensorLayout]
    meshes: tuple[Mesh, ...]
    values: frozenset[str]
    pattern: bytes  # 16 bytes, equal on ranks whose states are alike except for the ranks in meshes
    digest: bytes  # 16 bytes, equal on ranks whose states are alike

    @classmethod
    def of(
        cls, tensors: Mapping[str, TensorLayout], meshes: Sequence[Mesh], values: Iterable[str]
    ) -> Structure:
        ordered, names = dict(sorted(tensors.items())), frozenset(values)
        layouts = [
            (name, it.dtype, it.shape, it.cuts, it.mesh, it.is_whole)
            for name, it in ordered.items()
        ]
        pattern = _hash([layouts, sorted(names)])
        digest = _hash([pattern.hex(), [mesh.key for mesh in meshes]])
        return cls(ordered, tuple(meshes), names, pattern, digest)

    def only(self, names: Iterable[str]) -> Structure:
        """Returns the structure of the tensors of these names only, without values."""
        chosen = frozenset(names)
        tensors = {name: it for name, it in self.tensors.items() if name in chosen}
        return Structure.of(tensors, self.meshes, ())


class Cells:
    """What a rank holds of a tensor."""

    def __init__(self, shape: Shape, cuts: Sequence[Cut], coordinates: Sequence[int]) -> None:
        """
        Args:
            coordinates: the rank's coordinates along the mesh dimension of each cut.
        """
        self._runs = [[IndexRange(0, size)] if size else [] for size in shape]
        for cut, index in zip(cuts, coordinates, strict=True):
            self._runs[cut.dim] = _cut(self._runs[cut.dim], cut, index)

    @property
    def local_shape(self) -> Shape:
        """The shape of the rank's local tensor."""
        return tuple(sum(run.length for run in runs) for runs in self._runs)

    @property
    def count(self) -> int:
        return math.prod(self.local_shape)

    @cached_property
    def parts(self) -> tuple[ShardPart, ...]:
        """The rank's boxes, in row-major order; empty if it holds nothing."""
        places = [_placed(runs) for runs in self._runs]
        return tuple(
            ShardPart(
                Box(tuple(run.start for run, _ in at), sizes := tuple(run.length for run, _ in at)),
                Box(tuple(local for _, local in at), sizes),
            )
            for at in product(*places)
        )


@lru_cache(1 << 12)  # a model has few shapes, and many tensors of each
def _cell_bytes(itemsize: int, shape: Shape, cuts: tuple[Cut, ...]) -> Counts:
    sizes = np.full((1,) * len(cuts), itemsize, np.int64)
    for dim, size in enumerate(shape):
        mine = [cut for cut in cuts if cut.dim == dim]
        axes = [cut.parts if cut.dim == dim else 1 for cut in cuts]
        sizes = sizes * _lengths(size, mine).reshape(axes)
    found = sizes.reshape(-1)
    found.flags.writeable = False
    return found


@lru_cache(1 << 12)
def _cell(shape: Shape, cuts: tuple[Cut, ...], index: int) -> Cells:
    grid = tuple(cut.parts for cut in cuts)
    coordinates = np.unravel_index(index, grid) if cuts else ()
    return Cells(shape, cuts, [int(c) for c in coordinates])


def _hash(content: object) -> bytes:
    """Returns a hash of 16 bytes."""
    return blake3(json.dumps(content, separators=(",", ":")).encode()).digest(16)


def _placed(runs: Sequence[IndexRange]) -> list[tuple[IndexRange, int]]:
    """Returns the ranges, and where each begins in the local tensor."""
    placed, at = [], 0
    for run in runs:
        placed.append((run, at))
        at += run.length
    return placed


def _cut(runs: Sequence[IndexRange], cut: Cut, index: int) -> list[IndexRange]:
    """Returns part `index` of the indices in `runs`."""
    found: list[IndexRange] = []
    total = sum(run.length for run in runs)
    for group in range(cut.groups):
        start, end = _chunk(total, cut.groups, group)
        first, last = _chunk(end - start, cut.parts, index)
        for run in _between(runs, start + first, start + last):
            if found and found[-1].start + found[-1].length == run.start:
                run = IndexRange(found[-1].start, found.pop().length + run.length)
            found.append(run)
    return found


def _chunk(size: int, parts: int, index: int) -> tuple[int, int]:
    """Returns where chunk `index` begins and ends; the last chunks may be short or empty."""
    extent = -(-size // parts)
    return min(index * extent, size), min((index + 1) * extent, size)


def _between(runs: Sequence[IndexRange], first: int, last: int) -> list[IndexRange]:
    """Returns the ranges from position `first` to `last` of the indices in `runs`."""
    found, at = [], 0
    for run in runs:
        start, end = max(first, at), min(last, at + run.length)
        if start < end:
            found.append(IndexRange(run.start + start - at, end - start))
        at += run.length
    return found


def _lengths(size: int, cuts: Sequence[Cut]) -> Counts:
    """Returns how many indices of a dimension each part has; int64, one axis for each cut."""
    lengths = np.array(size, np.int64)
    for cut in cuts:
        group = -(-lengths // cut.groups)
        full, rest = np.divmod(lengths, np.maximum(group, 1))
        lengths = full[..., None] * _chunks(group, cut.parts) + _chunks(rest, cut.parts)
    return lengths


def _chunks(sizes: Counts, parts: int) -> Counts:
    """Returns the lengths of the chunks of each size, along a new last axis."""
    extents = -(-sizes[..., None] // parts)
    left: Counts = sizes[..., None] - extents * np.arange(parts)
    return np.clip(left, 0, extents)
