"""Plans which rank saves which part of the state, and which rank reads which part for which others.
The plan is the same on every rank."""

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
"""Bytes of a tensor on one rank from which on several ranks that hold it may each save a part."""


@dataclass(frozen=True)
class ReadGroup:
    """Ranks that need the same boxes, and which of them reads (or has) which part for all."""

    ranks: tuple[int, ...]  # ascending
    reads: tuple[Parts, ...]  # for each of the ranks; `local` is the same in all their tensors


class SaveShare(NamedTuple):
    """Cells that several ranks hold and one of them saves."""

    name: str  # name of the tensor
    saver: int  # index of the saving rank among those ranks
    parts: tuple[ShardPart, ...]


@dataclass(frozen=True)
class ReplicatedContent:
    """Content that several ranks hold, and which should be equal on them.

    Attributes:
        id: 16 hex digits, the same on all these ranks and unique to this content.
        ranks: the ranks, ascending.
        kind: as of `ReplicaGroup`.
        shares: shares of the tensors, which together are all their cells.
        values: names of values, where there are no tensors. The first rank saves them.
    """

    id: str
    ranks: tuple[int, ...]
    kind: str
    shares: tuple[SaveShare, ...] = ()
    values: tuple[str, ...] = ()


class GlobalPlan:
    """Decides which rank saves what: a pure function of the structures of all ranks.

    A tensor that several ranks hold is saved whole by one of them, so that a checkpoint never mixes
    replicas, should these differ; the ranks with the least to save so far take most. Very large
    tensors are divided by bytes among all ranks that hold them, along the grid of tiles, to balance
    the load. Tensors that only one rank holds are assigned first, then those that few hold. Tensors
    that may differ between ranks, such as the buffers of a replicated module, are saved by the
    first rank that holds them.
    """

    def __init__(self, by_rank: Sequence[Structure], *, divided: int | None = DIVIDED) -> None:
        """
        Args:
            divided: bytes from which on a tensor is divided; None: no tensor is.
        """
        self._classes, self._world = group_ranks(by_rank), len(by_rank)
        self._tensor_groups = group_tensors(self._classes, self._world)
        self._divided_from = divided

    def to_save(self, rank: int) -> Parts:
        """Returns what `rank` saves of each tensor. Of a tensor without elements the first rank
        saves an empty part, so that the checkpoint has the tensor.

        Raises:
            SaveError: on every rank, if any two ranks hold different tensors under one name or cut
                one in different ways, or if no rank holds some part of a tensor.
        """
        check_savable(self._tensor_groups)
        mine: dict[str, tuple[ShardPart, ...]] = {}
        for tensor_group, savers in zip(self._tensor_groups, self._savers, strict=True):
            cell = int(tensor_group.cell_of[rank])
            if cell < 0:
                continue
            place = int(np.searchsorted(tensor_group.holders[cell], rank))
            mine |= {one.name: one.parts for one in savers.shares(cell) if one.saver == place}
            if rank == tensor_group.first:
                mine |= {
                    n: _nothing(it, cell) for n, it in tensor_group.layouts.items() if 0 in it.shape
                }
        return mine

    def values_to_save(self, rank: int) -> frozenset[str]:
        """Returns the names of the values that `rank` saves: those that no lower rank has."""
        before: set[str] = set()
        for each in self._classes:
            if each.first == rank:
                return each.structure.values - before
            before |= each.structure.values
        return frozenset()

    def common(self, rank: int) -> list[ReplicatedContent]:
        """Returns the content of `rank` that other ranks should also hold."""
        found = []
        for tensor_group, savers in zip(self._tensor_groups, self._savers, strict=True):
            cell = int(tensor_group.cell_of[rank])
            if cell < 0 or len(tensor_group.holders[cell]) < 2:
                continue
            ranks = tuple(tensor_group.holders[cell].tolist())
            shares = tuple(savers.shares(cell))
            if shares:
                kind = "buffer" if tensor_group.is_whole else "tensor"
                boxes = [
                    (s.name, s.saver, [(*p.box.offsets, *p.box.sizes) for p in s.parts])
                    for s in shares
                ]
                found.append(ReplicatedContent(_id(ranks, kind, boxes), ranks, kind, shares))
        return found + self._common_values(rank)

    def read_groups(self, rank: int) -> list[ReadGroup]:
        """Returns the groups that `rank` is in when all ranks read what they hold: every byte of a
        group is read once, by one of its ranks, for all of them. Groups that several ranks share
        come in the same order on all of them."""
        groups = []
        for tensor_group, shares in zip(self._tensor_groups, self._reads, strict=True):
            if (cell := int(tensor_group.cell_of[rank])) >= 0:
                reads = _divided(tensor_group.layouts, cell, shares[cell])
                if any(reads):
                    groups.append(
                        ReadGroup(tuple(tensor_group.holders[cell].tolist()), tuple(reads))
                    )
        return groups

    def save_groups(self, rank: int) -> list[ReadGroup]:
        """As `read_groups`, but each rank has what it saves: used to exchange a state that lies in
        snapshots rather than in a store."""
        groups = []
        for tensor_group, savers in zip(self._tensor_groups, self._savers, strict=True):
            if (cell := int(tensor_group.cell_of[rank])) >= 0:
                holders = tensor_group.holders[cell]
                reads: list[dict[str, tuple[ShardPart, ...]]] = [{} for _ in holders]
                for share in savers.shares(cell):
                    reads[share.saver][share.name] = share.parts
                if any(reads):
                    groups.append(ReadGroup(tuple(holders.tolist()), tuple(reads)))
        return groups

    @cached_property
    def _savers(self) -> list[_Savers]:
        loads = np.zeros(self._world, np.int64)
        return [
            _Savers(tensor_group, loads, self._divided_from) for tensor_group in self._tensor_groups
        ]

    @cached_property
    def _reads(self) -> list[list[Counts]]:
        """For each cell of each group of tensors, how many bytes each rank that holds it reads."""
        loads = np.zeros(self._world, np.int64)
        return [
            _quotas(tensor_group, tensor_group.cell_bytes(), loads)
            for tensor_group in self._tensor_groups
        ]

    def _common_values(self, rank: int) -> list[ReplicatedContent]:
        if self._world == 1:
            return []
        classes: dict[str, list[int]] = {}  # numbers of the classes that have a value, by its name
        for number, each in enumerate(self._classes):
            for name in each.structure.values:
                classes.setdefault(name, []).append(number)
        alike: dict[tuple[int, ...], list[str]] = {}
        for name, found in classes.items():
            alike.setdefault(tuple(found), []).append(name)
        groups: dict[tuple[int, ...], list[str]] = {}
        for numbers, names in alike.items():  # not for each name: a value may be on all ranks
            ranks = np.concatenate([self._classes[number].ranks for number in numbers])
            if len(ranks) > 1 and rank in ranks:
                groups[tuple(np.sort(ranks).tolist())] = names
        return [
            ReplicatedContent(
                _id(ranks, "value", sorted(names)), ranks, "value", values=tuple(sorted(names))
            )
            for ranks, names in sorted(groups.items())
        ]


class _Savers:
    """Which of the ranks that hold a cell of a tensor group saves what of it."""

    def __init__(self, tensor_group: TensorGroup, loads: Counts, divided: int | None) -> None:
        """
        Args:
            loads: bytes that each rank saves so far; what it saves of this group is added.
        """
        self._tensor_group = tensor_group
        sizes = {name: layout.cell_bytes() for name, layout in tensor_group.layouts.items()}
        least = None if tensor_group.is_whole or _most(tensor_group) < 2 else divided
        self._divided = {
            name: layout
            for name, layout in tensor_group.layouts.items()
            if least is not None and sizes[name].max(initial=0) >= least
        }
        whole = {name: size for name, size in sizes.items() if name not in self._divided}
        self._whole = _assigned(tensor_group, whole, loads)
        total = sum(
            (sizes[name] for name in self._divided), np.zeros(len(tensor_group.holders), np.int64)
        )
        self._quotas = _quotas(tensor_group, total, loads)
        # by cell, since a rank asks for its own cell again
        self._shares: dict[int, list[SaveShare]] = {}

    def shares(self, cell: int) -> list[SaveShare]:
        """Returns everything that the holders of a cell save, by name."""
        if cell not in self._shares:
            self._shares[cell] = self._assign_shares(cell)
        return self._shares[cell]

    def _assign_shares(self, cell: int) -> list[SaveShare]:
        count = len(self._tensor_group.holders[cell])
        found = [
            SaveShare(name, saver % count, parts)
            for name, saver in self._whole.items()
            if (parts := self._tensor_group.layouts[name].cell(cell).parts)
        ]
        if self._divided:
            by_place = _divided(self._divided, cell, self._quotas[cell])
            found += [
                SaveShare(name, place, parts)
                for place, saved in enumerate(by_place)
                for name, parts in saved.items()
            ]
        return sorted(found, key=lambda share: share[:2])


def _assigned(
    tensor_group: TensorGroup, sizes: Mapping[str, Counts], loads: Counts
) -> dict[str, int]:
    """Returns, for each tensor and cell, the index among the cell's holders of the one that saves
    it. The largest tensor is assigned first, each to the holder with the least to save (R. L.
    Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17(2),
    1969)."""
    count = 1 if tensor_group.is_whole else _most(tensor_group)
    held = [[h[place % len(h)] for h in tensor_group.holders if len(h)] for place in range(count)]
    heap = [(int(loads[ranks].sum()), place) for place, ranks in enumerate(held)]
    heapq.heapify(heap)
    totals = np.zeros((count, len(tensor_group.holders)), np.int64)
    assigned = dict.fromkeys(sizes, 0)
    in_all = {name: int(size.sum()) for name, size in sizes.items()} if count > 1 else {}
    if count == 1 and sizes:  # no choice
        totals[0] = np.sum([*sizes.values()], axis=0)
    for name in sorted(in_all, key=lambda name: (-in_all[name], name)):
        load, place = heap[0]
        heapq.heapreplace(heap, (load + in_all[name], place))
        assigned[name] = place
        totals[place] += sizes[name]
    for cell, holders in enumerate(tensor_group.holders):
        for place in range(count if len(holders) else 0):
            loads[holders[place % len(holders)]] += totals[place, cell]
    return assigned


def _most(tensor_group: TensorGroup) -> int:
    """Returns the largest number of holders of a cell."""
    return max(map(len, tensor_group.holders), default=0)


def _quotas(tensor_group: TensorGroup, sizes: Counts, loads: Counts) -> list[Counts]:
    """Returns, for each cell, how many of its bytes each of its holders saves; these are added to
    their loads."""
    cells = []
    for holders, size in zip(tensor_group.holders, sizes, strict=True):
        taken = quotas(loads[holders], int(size)) if len(holders) else sizes[:0]
        loads[holders] += taken
        cells.append(taken)
    return cells


def _divided(
    layouts: Mapping[str, TensorLayout], cell: int, shares: Counts
) -> list[dict[str, tuple[ShardPart, ...]]]:
    """Returns what each holder of a cell saves of these tensors."""
    line = TileDivider(shares)
    found: list[dict[str, tuple[ShardPart, ...]]] = [{} for _ in shares]
    for name, layout in layouts.items():
        parts = layout.cell(cell).parts
        for place, part in line.take(layout.dtype, layout.shape, parts):
            found[place][name] = (*found[place].get(name, ()), part)
    return found


def _nothing(layout: TensorLayout, cell: int) -> tuple[ShardPart, ...]:
    """Returns an empty part of a tensor without elements."""
    sizes = layout.cell(cell).local_shape
    box = Box((0,) * len(sizes), sizes)
    return (ShardPart(box, box),)


def _id(ranks: Sequence[int], kind: str, content: Sequence[object]) -> str:
    return blake3(json.dumps([ranks, kind, content]).encode()).hexdigest(8)
