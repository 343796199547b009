"""Who saves which part of the state, and who reads which part for whom: the same on every rank."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from checkpointing.format.tiles import Box
from checkpointing.layout.save_balance import TileDivider, quotas
from checkpointing.layout.tensor_groups import (
    TensorGroup,
    check_savable,
    group_ranks,
    group_tensors,
)
from checkpointing.layout.tensor_layout import Counts, ShardPart, Structure, TensorLayout

Parts = Mapping[str, tuple[ShardPart, ...]]  # by name of the tensor

DIVIDED = 256 << 20
"""Bytes of a tensor on one rank from which on its replicas may save a part of it each."""


@dataclass(frozen=True)
class ReadGroup:
    """Ranks that want the same boxes, and which of them reads, or has, which part for all."""

    ranks: tuple[int, ...]  # ascending
    reads: tuple[Parts, ...]  # for each of the ranks; `local` is the same in all their tensors


class SaveShare(NamedTuple):
    """Cells that several ranks hold, and one of them saves."""

    name: str  # of the tensor
    saver: int  # its place among the ranks
    parts: tuple[ShardPart, ...]


@dataclass(frozen=True)
class ReplicatedContent:
    """What several ranks hold alike.

    Attributes:
        id: 16 hex digits: equal on all these ranks, and of nothing else.
        ranks: ascending.
        kind: as of `format.differing.Group`.
        shares: of the tensors; all cells of all of them.
        values: names of values, where there are no tensors. The first rank saves them.
    """

    id: str
    ranks: tuple[int, ...]
    kind: str
    shares: tuple[SaveShare, ...] = ()
    values: tuple[str, ...] = ()


class GlobalPlan:
    """Who saves what: a pure function of the structures of all ranks.

    Of what several ranks hold, each tensor is saved whole by one of them, so that a checkpoint
    never has a mixture of replicas, should these differ: those who have least to save so far take
    most. Very large tensors are divided among all by bytes, along the grid of tiles, which evens
    out what they save. What only one rank holds counts first, then what few hold. What ranks may
    have of their own, such as the buffers of a replicated module, is saved by the first rank that
    holds it.
    """

    def __init__(self, by_rank: Sequence[Structure], *, divided: int | None = DIVIDED) -> None:
        """
        Args:
            divided: bytes from which on a tensor is divided; None: none is.
        """
        self._kins, self._world = group_ranks(by_rank), len(by_rank)
        self._families = group_tensors(self._kins, self._world)
        self._divided_from = divided

    def to_save(self, rank: int) -> Parts:
        """What `rank` is to save of each tensor. Of a tensor without elements its first rank saves
        an empty part, so that it is known.

        Raises:
            SaveError: on every rank, if any two hold different tensors under one name or cut one in
                different ways, or if there is a part that no rank holds.
        """
        check_savable(self._families)
        mine: dict[str, tuple[ShardPart, ...]] = {}
        for family, savers in zip(self._families, self._savers, strict=True):
            cell = int(family.cell_of[rank])
            if cell < 0:
                continue
            place = int(np.searchsorted(family.holders[cell], rank))
            mine |= {one.name: one.parts for one in savers.shares(cell) if one.saver == place}
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

    def common(self, rank: int) -> list[ReplicatedContent]:
        """What `rank` holds that other ranks are to hold, too."""
        found = []
        for family, savers in zip(self._families, self._savers, strict=True):
            cell = int(family.cell_of[rank])
            if cell < 0 or len(family.holders[cell]) < 2:
                continue
            ranks = tuple(family.holders[cell].tolist())
            shares = tuple(savers.shares(cell))
            if shares:
                kind = "buffer" if family.is_whole else "tensor"
                boxes = [
                    (s.name, s.saver, [(*p.box.offsets, *p.box.sizes) for p in s.parts])
                    for s in shares
                ]
                found.append(ReplicatedContent(_id(ranks, kind, boxes), ranks, kind, shares))
        return found + self._common_values(rank)

    def read_groups(self, rank: int) -> list[ReadGroup]:
        """The groups that `rank` is in, if all ranks want what they hold: every byte of a group is
        read once, by one of its ranks, for all of them. Two groups that ranks have in common come
        in the same order on all of these."""
        groups = []
        for family, shares in zip(self._families, self._reads, strict=True):
            if (cell := int(family.cell_of[rank])) >= 0:
                reads = _divided(family.layouts, cell, shares[cell])
                if any(reads):
                    groups.append(ReadGroup(tuple(family.holders[cell].tolist()), tuple(reads)))
        return groups

    def save_groups(self, rank: int) -> list[ReadGroup]:
        """As `read_groups`, where each rank has what it saves: so is a state exchanged that lies in
        snapshots, and not in a store."""
        groups = []
        for family, savers in zip(self._families, self._savers, strict=True):
            if (cell := int(family.cell_of[rank])) >= 0:
                holders = family.holders[cell]
                reads: list[dict[str, tuple[ShardPart, ...]]] = [{} for _ in holders]
                for share in savers.shares(cell):
                    reads[share.saver][share.name] = share.parts
                if any(reads):
                    groups.append(ReadGroup(tuple(holders.tolist()), tuple(reads)))
        return groups

    @cached_property
    def _savers(self) -> list[_Savers]:
        loads = np.zeros(self._world, np.int64)
        return [_Savers(family, loads, self._divided_from) for family in self._families]

    @cached_property
    def _reads(self) -> list[list[Counts]]:
        """For each cell of each family, how many bytes each of its holders reads."""
        loads = np.zeros(self._world, np.int64)
        return [_quotas(family, family.cell_bytes(), loads) for family in self._families]

    def _common_values(self, rank: int) -> list[ReplicatedContent]:
        holders: dict[str, list[int]] = {}
        for each in self._kins:
            for name in each.structure.values:
                holders.setdefault(name, []).extend(each.ranks.tolist())
        groups: dict[tuple[int, ...], list[str]] = {}
        for name, ranks in holders.items():
            if len(ranks) > 1 and rank in ranks:
                groups.setdefault(tuple(sorted(ranks)), []).append(name)
        return [
            ReplicatedContent(
                _id(ranks, "value", sorted(names)), ranks, "value", values=tuple(sorted(names))
            )
            for ranks, names in sorted(groups.items())
        ]


class _Savers:
    """Who of the holders of a family's cells saves what of it."""

    def __init__(self, family: TensorGroup, loads: Counts, divided: int | None) -> None:
        """
        Args:
            loads: bytes that each rank saves so far; what it saves of this family is added.
        """
        self._family = family
        sizes = {name: layout.cell_bytes() for name, layout in family.layouts.items()}
        least = None if family.is_whole or _most(family) < 2 else divided
        self._divided = {
            name: layout
            for name, layout in family.layouts.items()
            if least is not None and sizes[name].max(initial=0) >= least
        }
        whole = {name: size for name, size in sizes.items() if name not in self._divided}
        self._whole = _assigned(family, whole, loads)
        total = sum(
            (sizes[name] for name in self._divided), np.zeros(len(family.holders), np.int64)
        )
        self._quotas = _quotas(family, total, loads)
        self._shares: dict[int, list[SaveShare]] = {}  # by cell: a rank asks for its own, again

    def shares(self, cell: int) -> list[SaveShare]:
        """All that the holders of a cell save, by name."""
        if cell not in self._shares:
            self._shares[cell] = self._shared_out(cell)
        return self._shares[cell]

    def _shared_out(self, cell: int) -> list[SaveShare]:
        count = len(self._family.holders[cell])
        found = [
            SaveShare(name, saver % count, parts)
            for name, saver in self._whole.items()
            if (parts := self._family.layouts[name].cell(cell).parts)
        ]
        if self._divided:
            by_place = _divided(self._divided, cell, self._quotas[cell])
            found += [
                SaveShare(name, place, parts)
                for place, saved in enumerate(by_place)
                for name, parts in saved.items()
            ]
        return sorted(found, key=lambda share: share[:2])


def _assigned(family: TensorGroup, sizes: Mapping[str, Counts], loads: Counts) -> dict[str, int]:
    """For each tensor the place, among the holders of every cell, of the one who saves it: the
    largest first, each by those who have the least to save (R. L. Graham, "Bounds on
    multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17(2), 1969)."""
    count = 1 if family.is_whole else _most(family)
    held = [[h[place % len(h)] for h in family.holders if len(h)] for place in range(count)]
    heap = [(int(loads[ranks].sum()), place) for place, ranks in enumerate(held)]
    heapq.heapify(heap)
    totals = np.zeros((count, len(family.holders)), np.int64)
    assigned = dict.fromkeys(sizes, 0)
    in_all = {name: int(size.sum()) for name, size in sizes.items()}
    for name in sorted(sizes, key=lambda name: (-in_all[name], name)) if count > 1 else sizes:
        load, place = heap[0]
        heapq.heapreplace(heap, (load + in_all[name], place))
        assigned[name] = place
        totals[place] += sizes[name]
    for cell, holders in enumerate(family.holders):
        for place in range(count if len(holders) else 0):
            loads[holders[place % len(holders)]] += totals[place, cell]
    return assigned


def _most(family: TensorGroup) -> int:
    """Holders of a cell."""
    return max(map(len, family.holders), default=0)


def _quotas(family: TensorGroup, sizes: Counts, loads: Counts) -> list[Counts]:
    """For each cell, how many of its bytes each of its holders takes; added to their loads."""
    cells = []
    for holders, size in zip(family.holders, sizes, strict=True):
        taken = quotas(loads[holders], int(size)) if len(holders) else sizes[:0]
        loads[holders] += taken
        cells.append(taken)
    return cells


def _divided(
    layouts: Mapping[str, TensorLayout], cell: int, shares: Counts
) -> list[dict[str, tuple[ShardPart, ...]]]:
    """What each holder of a cell has of these tensors."""
    line = TileDivider(shares)
    found: list[dict[str, tuple[ShardPart, ...]]] = [{} for _ in shares]
    for name, layout in layouts.items():
        parts = layout.cell(cell).parts
        for place, part in line.take(layout.dtype, layout.shape, parts):
            found[place][name] = (*found[place].get(name, ()), part)
    return found


def _nothing(layout: TensorLayout, cell: int) -> tuple[ShardPart, ...]:
    """An empty part, of a tensor without elements."""
    sizes = layout.cell(cell).local_shape
    box = Box((0,) * len(sizes), sizes)
    return (ShardPart(box, box),)


def _id(ranks: Sequence[int], kind: str, content: Sequence[object]) -> str:
    return blake3(json.dumps([ranks, kind, content]).encode()).hexdigest(8)
