"""Specs of earlier releases: what their keys stood for before they could be set.

A run that an earlier release has begun goes on with a later one, and the same command finds it: a
key that is as it was before it came counts for nothing in what identifies a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AddedKey:
    """A key, or a group with all its keys, that came after 0.1.0."""

    key: str
    """With dots."""
    value: Any
    """By which runs are as they were without it."""
    kind: str | None = None
    """The `kind` of the group that has it; None: all have it."""


ADDED: tuple[AddedKey, ...] = (
    AddedKey("hang.start_s", None),
    AddedKey("hang.validate_s", None),
    AddedKey("hang.save_s", None),
    AddedKey("data.cache_local", False),
    AddedKey("data.check", "auto"),
    AddedKey("checkpoint.check_replicas", 1),
    AddedKey("checkpoint.may_differ", []),
)
"""In the order in which they came. Nothing goes from here, nor from the spec: whoever stored it
could not go on."""


def completed(values: Mapping[str, Any], added: Iterable[AddedKey]) -> dict[str, Any]:
    """A spec's `values` with those of the keys that it was stored without."""
    whole = deepcopy(dict(values))
    for new in added:
        group, name = _place(whole, new)
        if group is not None and name not in group:
            group[name] = deepcopy(new.value)
    return whole


def reduced(values: Mapping[str, Any], added: Iterable[AddedKey]) -> dict[str, Any]:
    """`values` without the keys that make no difference to before they came."""
    rest = deepcopy(dict(values))
    for new in reversed(tuple(added)):
        group, name = _place(rest, new)
        if group is not None and name in group and group[name] == new.value:
            del group[name]
    return rest


def _place(values: dict[str, Any], new: AddedKey) -> tuple[dict[str, Any] | None, str]:
    """The group of a key, if there is one that may have it, and the key's name in it."""
    *parents, name = new.key.split(".")
    group: Any = values
    for parent in parents:
        group = group.get(parent) if isinstance(group, dict) else None
    if not isinstance(group, dict) or (new.kind is not None and group.get("kind") != new.kind):
        return None, name
    return group, name
