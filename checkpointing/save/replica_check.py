"""Decides whether replicas of tensors are compared at a save, and which of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

import xxhash

from checkpointing.format.replica_differences import NOT_TAKEN, ReplicaGroup
from checkpointing.format.values.json_values import Json
from checkpointing.layout.global_plan import DIVIDED, ReplicatedContent
from checkpointing.state.tree import Leaves

CheckReplicas: TypeAlias = "Literal['every'] | int | Literal[False]"


@dataclass(frozen=True)
class ReplicaCheck:
    """Which replicas are compared, and how often.

    Attributes:
        every: compare at the first of every so many saves; 0: never.
        may_differ: `fnmatch` patterns for names that may differ between ranks.
        with_values: whether values and small tensors that belong to no module or optimizer are
            compared too.
    """

    every: int = 1
    may_differ: tuple[str, ...] = ()
    with_values: bool = True

    @classmethod
    def of(
        cls, check: CheckReplicas, may_differ: Sequence[str], *, with_values: bool
    ) -> ReplicaCheck:
        """Returns the check for an argument of `Checkpointer`; raises ValueError if it is not a
        `CheckReplicas`."""
        if check == "every":
            every = 1
        elif check is False or (type(check) is int and check >= 1):
            every = int(check)
        else:
            raise ValueError(
                f"check_replicas must be 'every', a number of saves or False, not {check!r}"
            )
        if isinstance(may_differ, str):
            raise ValueError(f"may_differ must be a list of patterns, such as [{may_differ!r}]")
        return cls(every, tuple(may_differ), with_values)

    @property
    def divided(self) -> int | None:
        """The `divided` of `Plan`: where replicas are not compared, a tensor that several ranks
        save in parts may mix them."""
        return DIVIDED if self.every == 1 else None

    def is_due(self, saves: int) -> bool:
        """Whether replicas are compared at the save that follows `saves` others."""
        return self.every > 0 and saves % self.every == 0

    def chosen(
        self, common: Sequence[ReplicatedContent], leaves: Leaves
    ) -> tuple[ReplicatedContent, ...]:
        """Selects the contents that are compared; the names are the same on all ranks of a
        group."""
        if not self.every:
            return ()
        found = []
        for one in common:
            shares = [s for s in one.shares if s.name not in leaves.unlike and self._names(s.name)]
            values = [n for n in one.values if n not in leaves.unlike and self._names(n)]
            is_known = one.kind == "buffer"
            known = tuple(s for s in shares if is_known or s.name in leaves.alike)
            others = tuple(s for s in shares if not is_known and s.name not in leaves.alike)
            found.append(replace(one, shares=known, values=()))
            if self.with_values:
                found.append(
                    replace(one, id=_other_id(one), kind="value", shares=others, values=())
                )
                found.append(replace(one, shares=(), values=tuple(values)))
        return tuple(one for one in found if one.shares or one.values)

    def _names(self, name: str) -> bool:
        return not any(fnmatchcase(name, pattern) for pattern in self.may_differ)


def _other_id(one: ReplicatedContent) -> str:
    """Returns the id of the group's tensors that belong to neither modules nor optimizers."""
    return xxhash.xxh3_64_hexdigest(f"{one.id} value".encode())


def groups(common: Sequence[ReplicatedContent], rank: int) -> tuple[ReplicaGroup, ...]:
    """Returns what this rank reports, besides the fingerprints, about the contents that it shares
    with other ranks."""
    found = []
    for one in common:
        place = one.ranks.index(rank)
        entries = [(s.name, s.saver) for s in one.shares] or [(name, 0) for name in one.values]
        names, savers = zip(*entries, strict=True) if place == 0 else ((), ())
        found.append(ReplicaGroup(one.id, place, one.kind, len(entries), names, savers))
    return tuple(found)


def of_values(common: Sequence[ReplicatedContent], values: Mapping[str, Json]) -> dict[str, int]:
    """Returns the fingerprints of the values among the compared contents."""
    return {
        name: xxhash.xxh3_64_intdigest(_canonical(values[name])) or NOT_TAKEN + 1
        for one in common
        for name in one.values
    }


def _canonical(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
