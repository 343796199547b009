"""Who saves which part of the state, and who reads which part for whom: the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from checkpointing.families import Family, check_savable, families, kin
from checkpointing.format.tiles import Box
from checkpointing.layout import Counts, Layout, Part, Structure
from checkpointing.sharing import Line, quotas

Parts = Mapping[str, tuple[Part, ...]]  # by name of the tensor


@dataclass(frozen=True)
class ReadGroup:
    """Ranks that want the same boxes, and which of them reads which part for all."""

    ranks: tuple[int, ...]  # ascending
    reads: tuple[Parts, ...]  # for each of the ranks; `local` is the same in all their tensors


class Plan:
    """Who saves what: a pure function of the structures of all ranks.

    What several ranks hold is divided among them by bytes, along the grid of tiles: those who have
    least to save so far take most. What only one rank holds counts first, then what few hold. What
    ranks may have of their own, such as the buffers of a replicated module, is saved whole by the
    first rank that holds it.
    """

    def __init__(self, by_rank: Sequence[Structure]) -> None:
        self._kins = kin(by_rank)
        self._families = families(self._kins, len(by_rank))
        self._shares = _shares(self._families, len(by_rank))

    def to_save(self, rank: int) -> Parts:
        """What `rank` is to save of each tensor. Of a tensor without elements its first rank saves
        an empty part, so that it is known.

        Raises:
            SaveError: on every rank, if any two hold different tensors under one name or cut one in
                different ways, or if there is a part that no rank holds.
        """
        check_savable(self._families)
        mine: dict[str, tuple[Part, ...]] = {}
        for family, shares in zip(self._families, self._shares, strict=True):
            cell = int(family.cell_of[rank])
            if cell < 0:
                continue
            place = int(np.searchsorted(family.holders[cell], rank))
            mine |= _divided(family, cell, shares[cell], place)[place]
            if rank == family.first:
                mine |= {n: _nothing(it, cell) for n, it in family.layouts.items() if 0 in it.shape}
        return mine

    def values_to_save(self, rank: int) -> frozenset[str]:
        """The names of the values that `rank` is to save: those that no rank before it has."""
        before: set[str] = set()
        for each in self._kins:
            if each.first == rank:
                return each.structure.values - before
            before |= each.structure.values
        return frozenset()

    def read_groups(self, rank: int) -> list[ReadGroup]:
        """The groups that `rank` is in, if all ranks want what they hold: every byte of a group is
        read once, by one of its ranks, for all of them. Two groups that ranks have in common come
        in the same order on all of these."""
        groups = []
        for family, shares in zip(self._families, self._shares, strict=True):
            if (cell := int(family.cell_of[rank])) >= 0:
                reads = _divided(family, cell, shares[cell], None)
                if any(reads):
                    groups.append(ReadGroup(tuple(family.holders[cell].tolist()), tuple(reads)))
        return groups


def _shares(found: Sequence[Family], world_size: int) -> list[list[Counts]]:
    """For each cell of each family, how many bytes each of its holders takes."""
    loads = np.zeros(world_size, np.int64)
    shares = []
    for family in found:
        sizes = family.cell_bytes()
        cells = []
        for holders, size in zip(family.holders, sizes, strict=True):
            if family.is_whole and len(holders):
                taken = np.zeros(len(holders), np.int64)
                taken[0] = size
            else:
                taken = quotas(loads[holders], int(size)) if len(holders) else sizes[:0]
            loads[holders] += taken
            cells.append(taken)
        shares.append(cells)
    return shares


def _divided(
    family: Family, cell: int, shares: Counts, only: int | None
) -> list[dict[str, tuple[Part, ...]]]:
    """What each holder of a cell has of its tensors; or `only` one of them, by its place."""
    line = Line(shares)
    found: list[dict[str, tuple[Part, ...]]] = [{} for _ in shares]
    for name, layout in family.layouts.items():
        parts = layout.cell(cell).parts
        for place, part in line.take(layout.dtype, layout.shape, parts, only):
            found[place][name] = (*found[place].get(name, ()), part)
    return found


def _nothing(layout: Layout, cell: int) -> tuple[Part, ...]:
    """An empty part, of a tensor without elements."""
    sizes = layout.cell(cell).local_shape
    box = Box((0,) * len(sizes), sizes)
    return (Part(box, box),)
