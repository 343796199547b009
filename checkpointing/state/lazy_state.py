"""Restores state that the program does not have yet, or no longer has: `None` or an empty container
in a state where a checkpoint has tensors, and the other way round.

Some objects create state when they are first used (a running average, a list of past gradients), so
a program that has just started has none of it. It is restored as it was saved. Any other difference
is left as it is, and is refused by name later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import Any

import torch
from torch import Tensor

from checkpointing.format.torch_dtypes import torch_dtype
from checkpointing.format.values import registered_classes
from checkpointing.format.values.branch_kinds import (
    LISTS,
    BranchKind,
    branch_kind,
    in_words,
    keys_by_segment,
    unescaped,
)
from checkpointing.format.values.json_values import decode
from checkpointing.state.structure_comparison import Inventory
from checkpointing.state.tree import children, is_branch, join, rebuilt


def fitted(live: Any, path: str, stored: Inventory) -> Any:
    """Returns the tree to load into: `live`, but as the checkpoint has it wherever one of them is
    empty and the other has tensors. New tensors are on the CPU.

    Args:
        path: the full name of `live`.

    Raises:
        FormatError: an object in the checkpoint is of a class that the program has not registered.
    """
    if path in stored.values:
        if not isinstance(live, Tensor) and not is_branch(live):
            return live
        value = decode(stored.values[path])
        return value if _is_empty_form(value, live) else live
    if isinstance(live, Tensor):
        return live
    if is_branch(live):
        return _fitted_branch(live, path, stored)
    names = _names_below(path, stored)
    made = _made(path, stored, names) if names else live
    return made if _is_empty_form(live, made) else live


def _fitted_branch(live: Any, path: str, stored: Inventory) -> Any:
    pairs = [(key, child, join(path, key)) for key, child in children(live, path)]
    found = [(key, fitted(child, below, stored)) for key, child, below in pairs]
    is_same = all(one is child for (_, one), (_, child, _) in zip(found, pairs, strict=True))
    return live if is_same else rebuilt(live, found)


def _is_empty_form(empty: Any, full: Any) -> bool:
    """Whether `empty`, a tree without tensors, differs from `full` only in being empty where `full`
    has tensors. Other values are ignored."""
    if not (isinstance(full, Tensor) or is_branch(full)):
        return True
    if empty is None or (type(empty) in (list, tuple, dict) and not empty):
        return True
    is_tree = (
        isinstance(empty, dict | list | tuple) or registered_classes.name_of(empty) is not None
    )
    if isinstance(full, Tensor) or not is_tree or not _are_alike(empty, full):
        return False
    mine, theirs = dict(children(empty, "")), dict(children(full, ""))
    same = mine.keys() == theirs.keys() and {*map(type, mine)} == {*map(type, theirs)}
    return same and all(_is_empty_form(mine[key], theirs[key]) for key in mine)


def _are_alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return True
    return branch_kind(one) == branch_kind(other)


def _names_below(path: str, stored: Inventory) -> list[str]:
    """Returns the names of all leaves of the checkpoint below a path."""
    if path in stored.tensors or path in stored.values:
        return [path]
    first = bisect_left(stored.names, f"{path}/")
    return [*takewhile(lambda name: name.startswith(f"{path}/"), islice(stored.names, first, None))]


def _made(path: str, stored: Inventory, names: Iterable[str]) -> Any:
    """Returns the tree that the checkpoint has at a path, with uninitialised tensors."""
    if path in stored.tensors:
        return _blank(*stored.tensors[path])
    if path in stored.values:
        return decode(stored.values[path])
    below: dict[str, list[str]] = {}
    for name in names:
        below.setdefault(name.removeprefix(f"{path}/").partition("/")[0], []).append(name)
    made = {key: _made(f"{path}/{key}", stored, its) for key, its in below.items()}
    are_places = set(made) == {str(place) for place in range(len(made))}
    kind = stored.branches.get(path, "list" if are_places else None)
    if kind in LISTS and are_places:
        found = [made[str(place)] for place in range(len(made))]
        return found if kind == "list" else tuple(found)
    texts = {key: unescaped(key) for key in made}
    if isinstance(kind, dict) and "class" in kind:
        fields = {texts[key]: one for key, one in made.items()}
        return registered_classes.made(
            registered_classes.class_named(kind["class"], [*fields]), fields
        )
    keys = keys_by_segment(kind, texts.values())
    return {keys[texts[key]]: one for key, one in made.items()}


def _blank(shape: tuple[int, ...], dtype: str) -> Tensor:
    kind = torch_dtype(dtype)
    count = torch.Size(shape).numel()
    return torch.zeros(count * kind.itemsize, dtype=torch.uint8).view(kind).reshape(shape)


def conflicts(containers: dict[str, BranchKind], stored: Inventory) -> list[str]:
    """Describes the branches of the state that are of another kind in the checkpoint."""
    return [
        f"{name!r} is {in_words(stored.branches[name])} in the checkpoint but {in_words(one.kind)} "
        "in the state: make them the same"
        for name, one in containers.items()
        if stored.branches.get(name, one.kind) != one.kind
    ]
