"""How a tensor is spread over a mesh of ranks, and which boxes of it each of them holds."""

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
    """Cells of a tensor that one rank holds, side by side in the whole and in its own tensor."""

    box: Box  # in the global index space
    local: Box  # in the local tensor: of the same sizes


class Cut(NamedTuple):
    """A dimension cut along a dimension of the mesh, as torch.chunk cuts.

    With several groups, the indices are cut into these first, and each group into `parts`; a rank
    has its part of every group, one after the other.
    """

    mesh_dim: int
    dim: int
    parts: int  # the size of the mesh dimension
    groups: int = 1


class IndexRange(NamedTuple):
    """Indices of a dimension that follow each other."""

    start: int
    length: int


@dataclass(frozen=True)
class Mesh:
    """A grid of ranks. Two of them are equal if their keys are."""

    shape: tuple[int, ...]
    ranks: tuple[int, ...] = field(compare=False, repr=False)  # row-major
    key: str  # a hash of shape and ranks

    @classmethod
    def of(cls, shape: Sequence[int], ranks: Sequence[int]) -> Mesh:
        return cls(tuple(shape), tuple(ranks), _hash([tuple(shape), tuple(ranks)]).hex())


@dataclass(frozen=True)
class TensorLayout:
    """What a tensor is and how it is cut: the same on all ranks that hold a part of it."""

    dtype: str  # by torch's name
    shape: Shape  # of the whole tensor
    cuts: tuple[Cut, ...] = ()  # in their order; those of lower dimensions first. None: whole
    mesh: int | None = None  # that the cuts are made along: its place in `Structure.meshes`
    is_whole: bool = False  # what several ranks hold is saved by the first of them alone

    @property
    def itemsize(self) -> int:
        return element(self.dtype).itemsize

    @property
    def grid(self) -> tuple[int, ...]:
        """How many parts each cut makes: their product is the number of cells, of which each rank
        holds one."""
        return tuple(cut.parts for cut in self.cuts)

    def cell_bytes(self) -> Counts:
        """Bytes of every cell, in the order of `grid`; int64[product of the grid]."""
        sizes = np.full((1,) * len(self.cuts), self.itemsize, np.int64)
        for dim, size in enumerate(self.shape):
            mine = [cut for cut in self.cuts if cut.dim == dim]
            axes = [cut.parts if cut.dim == dim else 1 for cut in self.cuts]
            sizes = sizes * _lengths(size, mine).reshape(axes)
        return sizes.reshape(-1)

    def cell(self, index: int) -> Cells:
        """What the ranks of one cell hold."""
        return _cell(self.shape, self.cuts, index)


@dataclass(frozen=True)
class Structure:
    """What one rank's state is made of. Plain data: it travels between ranks."""

    tensors: Mapping[str, TensorLayout]  # by name, sorted: those that the rank may hold a part of
    meshes: tuple[Mesh, ...]
    values: frozenset[str]
    pattern: bytes  # 16 bytes: equal on ranks whose states are alike but for the ranks in meshes
    digest: bytes  # 16 bytes: equal on ranks whose states are alike

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
        """Of the tensors of these names alone, without values."""
        chosen = frozenset(names)
        tensors = {name: it for name, it in self.tensors.items() if name in chosen}
        return Structure.of(tensors, self.meshes, ())


class Cells:
    """What a rank holds of a tensor."""

    def __init__(self, shape: Shape, cuts: Sequence[Cut], coordinates: Sequence[int]) -> None:
        """
        Args:
            coordinates: of the rank, along the mesh dimension of each cut.
        """
        self._runs = [[IndexRange(0, size)] if size else [] for size in shape]
        for cut, index in zip(cuts, coordinates, strict=True):
            self._runs[cut.dim] = _cut(self._runs[cut.dim], cut, index)

    @property
    def local_shape(self) -> Shape:
        """Of the rank's own tensor."""
        return tuple(sum(run.length for run in runs) for runs in self._runs)

    @property
    def count(self) -> int:
        return math.prod(self.local_shape)

    @cached_property
    def parts(self) -> tuple[ShardPart, ...]:
        """Its boxes, in row-major order; none if the rank holds nothing."""
        places = [_placed(runs) for runs in self._runs]
        return tuple(
            ShardPart(
                Box(tuple(run.start for run, _ in at), sizes := tuple(run.length for run, _ in at)),
                Box(tuple(local for _, local in at), sizes),
            )
            for at in product(*places)
        )


@lru_cache(1 << 12)  # a model has few shapes, and many tensors of each
def _cell(shape: Shape, cuts: tuple[Cut, ...], index: int) -> Cells:
    grid = tuple(cut.parts for cut in cuts)
    coordinates = np.unravel_index(index, grid) if cuts else ()
    return Cells(shape, cuts, [int(c) for c in coordinates])


def _hash(content: object) -> bytes:
    """16 bytes."""
    return blake3(json.dumps(content, separators=(",", ":")).encode()).digest(16)


def _placed(runs: Sequence[IndexRange]) -> list[tuple[IndexRange, int]]:
    """Runs, and where each begins in the local tensor."""
    placed, at = [], 0
    for run in runs:
        placed.append((run, at))
        at += run.length
    return placed


def _cut(runs: Sequence[IndexRange], cut: Cut, index: int) -> list[IndexRange]:
    """Part `index` of the indices in `runs`."""
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
    """Where chunk `index` begins and ends; the last ones may be short or empty."""
    extent = -(-size // parts)
    return min(index * extent, size), min((index + 1) * extent, size)


def _between(runs: Sequence[IndexRange], first: int, last: int) -> list[IndexRange]:
    """What lies from position `first` to `last` of the indices in `runs`."""
    found, at = [], 0
    for run in runs:
        start, end = max(first, at), min(last, at + run.length)
        if start < end:
            found.append(IndexRange(run.start + start - at, end - start))
        at += run.length
    return found


def _lengths(size: int, cuts: Sequence[Cut]) -> Counts:
    """How many indices of a dimension each part has; int64, one axis for each cut."""
    lengths = np.array(size, np.int64)
    for cut in cuts:
        group = -(-lengths // cut.groups)
        full, rest = np.divmod(lengths, np.maximum(group, 1))
        lengths = full[..., None] * _chunks(group, cut.parts) + _chunks(rest, cut.parts)
    return lengths


def _chunks(sizes: Counts, parts: int) -> Counts:
    """The lengths of the chunks of each size, along a new last axis."""
    extents = -(-sizes[..., None] // parts)
    left: Counts = sizes[..., None] - extents * np.arange(parts)
    return np.clip(left, 0, extents)
