"""Groups tensors that are sharded over the ranks in the same way, so that they can be planned
together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from checkpointing.errors import SaveError
from checkpointing.layout.tensor_layout import Counts, Structure, TensorLayout


@dataclass(frozen=True)
class TensorGroup:
    """Tensors whose cells are held by the same ranks."""

    layouts: Mapping[str, TensorLayout]  # by name, sorted
    cell_of: Counts  # the cell that each rank holds, -1: none; int64[ranks of the job]
    holders: Sequence[Counts]  # the ranks that hold each cell, ascending; int64 each
    is_whole: bool = False  # see `TensorLayout.is_whole`

    @property
    def first(self) -> int:
        """The first rank that has the tensors in its state."""
        return int(np.argmax(self.cell_of >= 0))

    def cell_bytes(self) -> Counts:
        """Returns the bytes of all tensors in each cell; int64[cells]."""
        total = np.zeros(len(self.holders), np.int64)
        for layout in self.layouts.values():
            total += layout.cell_bytes()
        return total


@dataclass(frozen=True)
class RankClass:
    """Ranks whose states are alike."""

    structure: Structure
    ranks: Counts  # ascending

    @property
    def first(self) -> int:
        return int(self.ranks[0])


PatternClasses = Sequence[RankClass]  # classes whose structures have the same pattern
# the layouts of one tensor, each with the classes that have it
Layouts = Sequence[tuple[PatternClasses, TensorLayout]]


def group_ranks(by_rank: Sequence[Structure]) -> list[RankClass]:
    """Returns the ranks grouped by equal structures, in the order of their first ranks."""
    ranks: dict[bytes, list[int]] = {}
    for rank, structure in enumerate(by_rank):
        ranks.setdefault(structure.digest, []).append(rank)
    return [RankClass(by_rank[found[0]], np.array(found, np.int64)) for found in ranks.values()]


def group_tensors(classes: Sequence[RankClass], world_size: int) -> list[TensorGroup]:
    """Groups the tensors of all ranks. Groups whose cells have the fewest holders come first.

    A tensor that ranks cut in different ways is in several groups.
    """
    by_pattern: dict[bytes, list[RankClass]] = {}
    for each in classes:
        by_pattern.setdefault(each.structure.pattern, []).append(each)
    reported: dict[tuple[object, ...], list[tuple[PatternClasses, TensorLayout]]] = {}
    for members in by_pattern.values():
        for name, layout in members[0].structure.tensors.items():
            reported.setdefault((name, *_boxes(layout)), []).append((members, layout))
    alike: dict[object, list[tuple[object, ...]]] = {}
    for tensor in sorted(reported):
        key = tuple(
            (members[0].first, layout.is_whole, _spread(layout))
            for members, layout in reported[tensor]
        )
        alike.setdefault(key, []).append(tensor)
    found = [
        _make_group(
            {str(t[0]): reported[t][0][1] for t in tensors}, reported[tensors[0]], world_size
        )
        for tensors in alike.values()
    ]
    return sorted(found, key=lambda tensor_group: max(map(len, tensor_group.holders)))


def check_savable(found: Sequence[TensorGroup]) -> None:
    """Check that the groups make up whole tensors.

    Raises:
        SaveError: ranks hold different tensors under one name, or cut one in different ways, or no
            rank holds some part of a tensor.
    """
    seen: dict[str, TensorGroup] = {}
    for tensor_group in sorted(found, key=lambda tensor_group: tensor_group.first):
        missing = [cell for cell, holders in enumerate(tensor_group.holders) if not len(holders)]
        for name, layout in tensor_group.layouts.items():
            if (other := seen.setdefault(name, tensor_group)) is not tensor_group:
                raise SaveError(_disagreement(name, other, tensor_group))
            if count := sum(layout.cell(cell).count for cell in missing):
                raise SaveError(
                    f"{count} elements of {name!r} are not held by any rank that has it in its "
                    f"state (it is {_how(layout)}): put it into the state of all its ranks"
                )


def _boxes(layout: TensorLayout) -> tuple[object, ...]:
    """Returns what determines which boxes of which tensor the cells are."""
    cuts = tuple((cut.dim, cut.parts, cut.groups) for cut in layout.cuts)
    return layout.dtype, layout.shape, cuts, layout.is_whole


def _spread(layout: TensorLayout) -> tuple[object, ...]:
    """Returns what determines, within classes of one pattern, which cell a rank holds."""
    return layout.mesh, tuple((cut.mesh_dim, cut.parts) for cut in layout.cuts)


def _disagreement(name: str, one: TensorGroup, other: TensorGroup) -> str:
    first, second = one.layouts[name], other.layouts[name]
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return (
            f"{name!r} is {_spec(first)} on rank {one.first} and {_spec(second)} on rank "
            f"{other.first}: give them different names, or make them one tensor"
        )
    return (
        f"{name!r} is {_spec(first)} {_how(first)} on rank {one.first}, but {_how(second)} on rank "
        f"{other.first}: give it the same placements everywhere"
    )


def _spec(layout: TensorLayout) -> str:
    return f"{layout.dtype}[{', '.join(map(str, layout.shape))}]"


def _how(layout: TensorLayout) -> str:
    cuts = [f"in {cut.parts} along dimension {cut.dim}" for cut in layout.cuts]
    return f"cut {' and '.join(cuts)}" if cuts else "whole"


def _make_group(
    layouts: Mapping[str, TensorLayout], reported: Layouts, world_size: int
) -> TensorGroup:
    cell_of = np.full(world_size, -1, np.int64)
    for members, layout in reported:
        for each in members:
            cell_of[each.ranks] = _cells(each, layout)
    count = math.prod(reported[0][1].grid)
    order = np.argsort(cell_of, kind="stable")
    edges = np.searchsorted(cell_of[order], np.arange(count + 1)).tolist()
    holders = [order[a:b] for a, b in pairwise(edges)]
    return TensorGroup(layouts, cell_of, holders, reported[0][1].is_whole)


def _cells(each: RankClass, layout: TensorLayout) -> Counts:
    """Returns the cell that each of the ranks holds."""
    if layout.mesh is None:
        return np.zeros(len(each.ranks), np.int64)
    mesh = each.structure.meshes[layout.mesh]
    ranks = np.array(mesh.ranks, np.int64)
    order = np.argsort(ranks)
    places = order[np.searchsorted(ranks[order], each.ranks)]
    coordinates = np.unravel_index(places, mesh.shape)
    along = tuple(coordinates[cut.mesh_dim] for cut in layout.cuts)
    return np.ravel_multi_index(along, layout.grid).astype(np.int64)
