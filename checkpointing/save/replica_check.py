"""Whether what several ranks hold alike is compared when it is saved, and what of it."""

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
    """What is compared, and how often.

    Attributes:
        every: compare at the first of so many saves; 0: at none.
        may_differ: patterns of names, as of `fnmatch`, of what ranks may have of their own.
        with_values: whether values and small tensors that belong to no module or optimizer are
            compared, too.
    """

    every: int = 1
    may_differ: tuple[str, ...] = ()
    with_values: bool = True

    @classmethod
    def of(
        cls, check: CheckReplicas, may_differ: Sequence[str], *, with_values: bool
    ) -> ReplicaCheck:
        """Raises ValueError: `check` is none of `CheckReplicas`."""
        if check == "every":
            every = 1
        elif check is False or (type(check) is int and check >= 1):
            every = int(check)
        else:
            raise ValueError(
                f"check_replicas is 'every', a number of saves or False, not {check!r}"
            )
        if isinstance(may_differ, str):
            raise ValueError(f"may_differ is a list of patterns: [{may_differ!r}]")
        return cls(every, tuple(may_differ), with_values)

    @property
    def divided(self) -> int | None:
        """As of `Plan`: a tensor that is divided may be a mixture where it is not compared."""
        return DIVIDED if self.every == 1 else None

    def is_due(self, saves: int) -> bool:
        """Whether the save after so many others is compared."""
        return self.every > 0 and saves % self.every == 0

    def chosen(
        self, common: Sequence[ReplicatedContent], leaves: Leaves
    ) -> tuple[ReplicatedContent, ...]:
        """What of it is compared; of the same names on all ranks of each."""
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
    """Of the group that those of its tensors are which belong to neither modules nor optimizers."""
    return xxhash.xxh3_64_hexdigest(f"{one.id} value".encode())


def groups(common: Sequence[ReplicatedContent], rank: int) -> tuple[ReplicaGroup, ...]:
    """What this rank says of what it has in common with others, beside the fingerprints."""
    found = []
    for one in common:
        place = one.ranks.index(rank)
        entries = [(s.name, s.saver) for s in one.shares] or [(name, 0) for name in one.values]
        names, savers = zip(*entries, strict=True) if place == 0 else ((), ())
        found.append(ReplicaGroup(one.id, place, one.kind, len(entries), names, savers))
    return tuple(found)


def of_values(common: Sequence[ReplicatedContent], values: Mapping[str, Json]) -> dict[str, int]:
    """The fingerprints of the values among it."""
    return {
        name: xxhash.xxh3_64_intdigest(_canonical(values[name])) or NOT_TAKEN + 1
        for one in common
        for name in one.values
    }


def _canonical(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
