"""Plans what this rank saves of a state and where it lies in a slot. A new plan is made only when
the structure of the state changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor
from torch.optim import Optimizer

from checkpointing.distributed_classes import is_dtensor
from checkpointing.errors import OtherRankError, SaveError
from checkpointing.format.element_types import element
from checkpointing.format.replica_differences import Fingerprints
from checkpointing.format.tiles import Box, Shape
from checkpointing.format.torch_dtypes import dtype_name
from checkpointing.format.values.json_values import Json
from checkpointing.layout.dtensor_placement import structure
from checkpointing.layout.global_plan import GlobalPlan, ReplicatedContent
from checkpointing.layout.tensor_layout import ShardPart, Structure
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.save.replica_check import ReplicaCheck, groups, of_values
from checkpointing.service.snapshots import SlotBox, SnapshotLayout
from checkpointing.staging.replica_fingerprints import ComparedCells
from checkpointing.staging.slot_layout import PAGE, layout, round_up
from checkpointing.staging.stager import StagePiece
from checkpointing.staging.tensor_copy import cells_of
from checkpointing.state.tree import Leaves
from checkpointing.torch_internals import held_tensor


@dataclass(frozen=True)
class SavePlan:
    """One rank's part in saving states of one structure."""

    structure: Structure  # the structure of this rank's state
    plan: GlobalPlan
    parts: tuple[
        tuple[str, ShardPart], ...
    ]  # the parts that this rank saves, in the order in which they lie in a slot
    later: int  # how many of the parts, counted from the end, are parameters or optimizer state
    saved_values: frozenset[str]
    layout: SnapshotLayout
    # contents that other ranks also hold, and that are compared
    common: tuple[ReplicatedContent, ...] = ()

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot that fits this rank's part."""
        return max(round_up(self.layout.end, PAGE), PAGE)

    def fingerprints(self, of_tensors: Sequence[int], values: Mapping[str, Json]) -> Fingerprints:
        """Returns the fingerprints of all entries of `common`, in their order; `of_tensors` is in
        the order of `compared`."""
        left, by_name = iter(of_tensors), of_values(self.common, values)
        found: list[int] = []
        for one in self.common:
            found += [next(left) for _ in one.shares] or [by_name[name] for name in one.values]
        return np.array(found, np.uint64)

    def pieces(self, tensors: Mapping[str, Tensor]) -> list[StagePiece]:
        """Returns the live tensors' cells to stage."""
        return [
            StagePiece(name, tensors[name], local, shape, offsets)
            for name, local, shape, offsets in self._boxes
        ]

    @cached_property
    def _boxes(self) -> list[tuple[str, Box, Shape, Shape]]:
        """Returns what is the same at each save of the pieces: name, box, shape and offsets."""
        return [
            (name, part.local, place.shape, part.box.offsets)
            for (name, part), place in zip(self.parts, self.layout.places, strict=True)
        ]

    def compared(self, leaves: Leaves) -> list[ComparedCells]:
        """Returns the live cells that other ranks also hold, in the order of `common`."""
        return [
            ComparedCells(
                share.name,
                leaves.tensors[share.name],
                [cells_of(leaves.tensors[share.name], part.local) for part in share.parts],
                share.name in leaves.plain or share.name in leaves.whole,
            )
            for one in self.common
            for share in one.shares
        ]


_Outline: TypeAlias = (
    "tuple[tuple[str, ...], list[tuple[torch.dtype, torch.Size]], tuple[str, ...], set[str]]"
)
"""The names of tensors, their dtypes and shapes, the names of values, and of whole tensors."""


class Planner:
    """Makes plans, and returns the same object while the structure stays the same."""

    def __init__(self, ranks: RankGroup, check: ReplicaCheck | None = None) -> None:
        """
        Args:
            check: which replicas are compared; None: none.
        """
        self._ranks, self._check = ranks, check or ReplicaCheck(every=0)
        self._planned: SavePlan | None = None
        self._outline: _Outline | None = None  # of the state that was planned last

    def plan(self, leaves: Leaves, optimizers: Iterable[Optimizer]) -> SavePlan:
        """Returns the plan for this state. Collective at the first state and whenever the structure
        differs from the state before, which must happen on all ranks at the same save.

        Raises:
            SaveError: the states of the ranks do not fit together, or only this rank's has changed.
            TypeError: a tensor has a placement that cannot be saved.
        """
        outline = _outline(leaves)
        if self._planned is not None and outline is not None and outline == self._outline:
            return self._planned
        self._outline = None
        mine = structure(leaves.tensors, leaves.values, leaves.whole)
        if self._planned is None or self._planned.structure.digest != mine.digest:
            rank_structures = self._gather_structures(mine)
            late = _stepped(leaves, optimizers)
            self._planned = _planned(
                mine, rank_structures, self._ranks.rank, leaves, late, self._check
            )
        self._outline = outline
        return self._planned

    def _gather_structures(self, mine: Structure) -> list[Structure]:
        try:
            with self._ranks.expect_all("saving a state of new names, shapes or types"):
                group = self._ranks.structures
                return self._ranks.all_gather_alike(mine, lambda: mine.digest, group)
        except OtherRankError as error:
            raise SaveError(
                f"rank {self._ranks.rank}: its state has other tensors or values than at the "
                f"previous save, but not all ranks reached a save at which theirs do: {error}"
            ) from error


def _outline(leaves: Leaves) -> _Outline | None:
    """Returns what determines the structure of a state without DTensors, in a form that is quickly
    made and compared; None of one with DTensors."""
    tensors = leaves.tensors.values()
    if any(map(is_dtensor, tensors)):
        return None
    specs = [(one.dtype, one.shape) for one in tensors]
    return tuple(leaves.tensors), specs, tuple(leaves.values), leaves.whole


def _stepped(leaves: Leaves, optimizers: Iterable[Optimizer]) -> set[str]:
    """Returns the names of the tensors that only a step of these optimizers changes: their
    parameters and their own state."""
    owned: set[int] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            owned |= {_memory(parameter) for parameter in group["params"]}
        # state under a key that is not a parameter may be of any type
        for state in optimizer.state.values():
            its = state.values() if isinstance(state, Mapping) else (state,)
            owned |= {_memory(value) for value in its if isinstance(value, Tensor)}
    found = {name for name, tensor in leaves.tensors.items() if _memory(tensor) in owned}
    return found | leaves.stepped


def _memory(tensor: Tensor) -> int:
    return held_tensor(tensor).untyped_storage().data_ptr()


def _planned(
    mine: Structure,
    rank_structures: list[Structure],
    rank: int,
    leaves: Leaves,
    late: set[str],
    check: ReplicaCheck,
) -> SavePlan:
    plan = GlobalPlan(rank_structures, divided=check.divided)
    found = plan.to_save(rank)
    ordered = sorted(found, key=lambda name: name in late)
    parts = tuple((name, part) for name in ordered for part in found[name])
    specs = {name: (dtype_name(t.dtype), tuple(t.shape)) for name, t in leaves.tensors.items()}
    sizes = [part.box.count * element(specs[name][0]).itemsize for name, part in parts]
    offsets, _ = layout(sizes)
    places = tuple(
        SlotBox(name, *specs[name], part.box.offsets, part.box.sizes, offset)
        for (name, part), offset in zip(parts, offsets, strict=True)
    )
    common = check.chosen(plan.common(rank), leaves)
    contents = SnapshotLayout(
        _digest(rank_structures, rank, places, common), places, groups(common, rank)
    )
    later = sum(len(found[name]) for name in found if name in late)
    saved_values = plan.values_to_save(rank)
    return SavePlan(mine, plan, parts, later, saved_values, contents, common)


def _digest(
    rank_structures: list[Structure],
    rank: int,
    places: tuple[SlotBox, ...],
    common: Sequence[ReplicatedContent],
) -> str:
    """Returns a digest of the ranks, of what they hold, of this rank's offsets and of what is
    compared."""
    whole = blake3(b"".join(one.digest for one in rank_structures) + rank.to_bytes(4, "little"))
    whole.update(
        json.dumps([[place.name, place.offsets, place.start] for place in places]).encode()
    )
    compared = [[one.id, one.values, [share.name for share in one.shares]] for one in common]
    whole.update(json.dumps(compared).encode())
    return whole.hexdigest(16)
