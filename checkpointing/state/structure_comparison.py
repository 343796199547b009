"""Compares the structure of a state with that of a checkpoint and describes the differences as
text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from blake3 import blake3

from checkpointing.format.values.branch_kinds import RECORD, branches_of
from checkpointing.format.values.json_values import Json
from checkpointing.store.checkpoint import Checkpoint

T = TypeVar("T")

_SHOWN = 20  # names shown per section


@dataclass(frozen=True)
class Inventory:
    """The names, shapes and values that a checkpoint holds."""

    tensors: Mapping[str, tuple[tuple[int, ...], str]]  # full name -> (global shape, dtype name)
    values: Mapping[str, Json]  # encoded values
    # kinds of branches, as `containers` has them
    branches: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Inventory:
        """Read all tables of a checkpoint; raises as `Checkpoint.table`."""
        specs = checkpoint.tensors().items()
        return cls.made({n: (spec.shape, spec.dtype) for n, spec in specs}, checkpoint.values())

    @classmethod
    def made(
        cls, tensors: Mapping[str, tuple[tuple[int, ...], str]], found: Mapping[str, Json]
    ) -> Inventory:
        """Returns the inventory of these tensors and of all values that were found."""
        values = {n: v for n, v in found.items() if n != RECORD}  # belongs to no state
        return cls(tensors, values, branches_of(found))

    @cached_property
    def names(self) -> list[str]:
        """Returns all names, sorted."""
        return sorted({*self.tensors, *self.values})

    def below(self, path: str) -> Inventory:
        """Returns what lies below a name, under the rest of the names."""
        return Inventory(
            _below(path, self.tensors), _below(path, self.values), _below(path, self.branches)
        )


@dataclass(frozen=True)
class StateRequirements:
    """What one rank's state needs from a checkpoint. Plain data, which is sent between ranks."""

    tensors: dict[str, tuple[tuple[int, ...], str]]  # fqn -> (global shape, dtype name)
    values: frozenset[str]
    problems: tuple[str, ...] = ()  # mismatches other than names, shapes and dtypes
    # prefixes of names that the state need not have, since other ranks have them
    covered: tuple[str, ...] = ()

    def digest(self) -> bytes:
        """Returns a hash of 16 bytes, equal on ranks that need the same."""
        return json_digest(
            [sorted(self.tensors.items()), sorted(self.values), self.problems, self.covered]
        )


def json_digest(content: object) -> bytes:
    """Returns a hash of 16 bytes of what JSON can have; dicts that are equal have the same."""
    return blake3(json.dumps(content, sort_keys=True).encode()).digest(16)


def difference(wants: Iterable[StateRequirements], inventory: Inventory) -> str | None:
    """Describes what does not match between the states of all ranks and a checkpoint; None if all
    matches."""
    tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    values: set[str] = set()
    problems: dict[str, None] = {}
    covered: tuple[str, ...] = ()
    for needed in wants:
        tensors.update(needed.tensors)
        values.update(needed.values)
        problems |= dict.fromkeys(needed.problems)
        covered += needed.covered
    stored, stored_values = inventory.tensors, inventory.values.keys()
    changed = [
        f"{name}: {_spec(stored[name])} in the checkpoint, {_spec(tensors[name])} in the state"
        for name in tensors.keys() & stored.keys()
        if stored[name] != tensors[name]
    ]
    sections = [
        *(f"\n  {problem}" for problem in problems),
        _section("tensors missing in the checkpoint", tensors.keys() - stored.keys()),
        _section("tensors not in the state", _uncovered(stored.keys() - tensors.keys(), covered)),
        _section("tensors of another shape or dtype", changed),
        _section("values missing in the checkpoint", values - stored_values),
        _section("values not in the state", _uncovered(stored_values - values, covered)),
    ]
    text = "".join(sections)
    return text or None


def _below(path: str, named: Mapping[str, T]) -> dict[str, T]:
    start = f"{path}/"
    return {n.removeprefix(start): one for n, one in named.items() if n.startswith(start)}


def _uncovered(names: Iterable[str], covered: tuple[str, ...]) -> list[str]:
    return [name for name in names if not name.startswith(covered)]


def _section(title: str, names: Iterable[str]) -> str:
    ordered = sorted(names)
    if not ordered:
        return ""
    lines = [f"\n  {title} ({len(ordered)}):", *(f"\n    {n}" for n in ordered[:_SHOWN])]
    if len(ordered) > _SHOWN:
        lines.append(f"\n    ... and {len(ordered) - _SHOWN} more")
    return "".join(lines)


def _spec(spec: tuple[tuple[int, ...], str]) -> str:
    shape, dtype = spec
    return f"{dtype}[{', '.join(map(str, shape))}]"
