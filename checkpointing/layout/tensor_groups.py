"""Tensors that are spread over the ranks alike: what is said of one of them holds for all."""

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
    """Tensors of which the same ranks hold the same cells."""

    layouts: Mapping[str, TensorLayout]  # by name, sorted
    cell_of: Counts  # which cell each rank holds, -1: none; int64[ranks of the job]
    holders: Sequence[Counts]  # the ranks that hold each cell, ascending; int64 each
    is_whole: bool = False  # as of `TensorLayout`

    @property
    def first(self) -> int:
        """The first rank that has them in its state."""
        return int(np.argmax(self.cell_of >= 0))

    def cell_bytes(self) -> Counts:
        """Bytes of all tensors in each cell; int64[cells]."""
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


Clan = Sequence[RankClass]  # their structures have one pattern
Told = Sequence[tuple[Clan, TensorLayout]]  # what clans say of one tensor


def group_ranks(by_rank: Sequence[Structure]) -> list[RankClass]:
    """Ranks with equal structures, in the order of their first ranks."""
    ranks: dict[bytes, list[int]] = {}
    for rank, structure in enumerate(by_rank):
        ranks.setdefault(structure.digest, []).append(rank)
    return [RankClass(by_rank[found[0]], np.array(found, np.int64)) for found in ranks.values()]


def group_tensors(kins: Sequence[RankClass], world_size: int) -> list[TensorGroup]:
    """All families of the tensors of all ranks, those first whose cells have the fewest holders.

    A tensor that ranks cut in different ways is in several of them.
    """
    clans: dict[bytes, list[RankClass]] = {}
    for each in kins:
        clans.setdefault(each.structure.pattern, []).append(each)
    told: dict[tuple[object, ...], list[tuple[Clan, TensorLayout]]] = {}
    for clan in clans.values():
        for name, layout in clan[0].structure.tensors.items():
            told.setdefault((name, *_boxes(layout)), []).append((clan, layout))
    alike: dict[object, list[tuple[object, ...]]] = {}
    for tensor in sorted(told):
        key = tuple(
            (clan[0].first, layout.is_whole, _spread(layout)) for clan, layout in told[tensor]
        )
        alike.setdefault(key, []).append(tensor)
    found = [
        _family({str(t[0]): told[t][0][1] for t in tensors}, told[tensors[0]], world_size)
        for tensors in alike.values()
    ]
    return sorted(found, key=lambda family: max(map(len, family.holders)))


def check_savable(found: Sequence[TensorGroup]) -> None:
    """That the families make up whole tensors.

    Raises:
        SaveError: ranks hold different tensors under one name, or cut one in different ways, or
            there is a part that no rank holds.
    """
    seen: dict[str, TensorGroup] = {}
    for family in sorted(found, key=lambda family: family.first):
        missing = [cell for cell, holders in enumerate(family.holders) if not len(holders)]
        for name, layout in family.layouts.items():
            if (other := seen.setdefault(name, family)) is not family:
                raise SaveError(_disagreement(name, other, family))
            if count := sum(layout.cell(cell).count for cell in missing):
                raise SaveError(
                    f"{count} elements of {name!r} are held by no rank that has it in its state "
                    f"(it is {_how(layout)}): put it into the state of all its ranks"
                )


def _boxes(layout: TensorLayout) -> tuple[object, ...]:
    """What decides which boxes of which tensor the cells are."""
    cuts = tuple((cut.dim, cut.parts, cut.groups) for cut in layout.cuts)
    return layout.dtype, layout.shape, cuts, layout.is_whole


def _spread(layout: TensorLayout) -> tuple[object, ...]:
    """What decides, in a clan, which cell a rank holds."""
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


def _family(layouts: Mapping[str, TensorLayout], told: Told, world_size: int) -> TensorGroup:
    cell_of = np.full(world_size, -1, np.int64)
    for clan, layout in told:
        for each in clan:
            cell_of[each.ranks] = _cells(each, layout)
    count = math.prod(told[0][1].grid)
    order = np.argsort(cell_of, kind="stable")
    edges = np.searchsorted(cell_of[order], np.arange(count + 1)).tolist()
    holders = [order[a:b] for a, b in pairwise(edges)]
    return TensorGroup(layouts, cell_of, holders, told[0][1].is_whole)


def _cells(each: RankClass, layout: TensorLayout) -> Counts:
    """The cell that each of the ranks holds."""
    if layout.mesh is None:
        return np.zeros(len(each.ranks), np.int64)
    mesh = each.structure.meshes[layout.mesh]
    ranks = np.array(mesh.ranks, np.int64)
    order = np.argsort(ranks)
    places = order[np.searchsorted(ranks[order], each.ranks)]
    coordinates = np.unravel_index(places, mesh.shape)
    along = tuple(coordinates[cut.mesh_dim] for cut in layout.cuts)
    return np.ravel_multi_index(along, layout.grid).astype(np.int64)
