"""Determines which branches of a state are lists.

Names do not show it: "l/0" is the first element of a list, or the entry "0" of a dict. A branch
whose keys are 0, 1, ... without a gap counts as a list, except the state of a torch optimizer,
which is a dict. A checkpoint records the exceptions in the value `RECORD`
(`checkpointing/format/values/branch_kinds.py`); an optimizer that `Checkpointer` saved records its
own containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from checkpointing.errors import SaveError
from checkpointing.format.values.branch_kinds import LISTS, RECORD, branches_of
from checkpointing.format.values.json_values import Json, decode
from checkpointing.interop.tensor_names import full_name, inner_path, path_of
from checkpointing.store.checkpoint import Checkpoint

Keys = tuple[str | int, ...]

_DIGITS = 9  # most digits of an index: a list is created as long as its last index says
_OUTLINES = {"/containers.": "/state.", "/own_containers.": "/own_state."}
"""Prefixes of an optimizer's container records and of the containers, as
checkpointing/state/optimizer_state.py names them."""


def record(paths: Iterable[Keys]) -> dict[str, Json]:
    """Returns the values to save with leaves that have these keys, so that `lists_of` finds the
    same lists; usually none.

    Raises:
        SaveError: a leaf has the name of the record.
    """
    paths = list(paths)
    names = [full_name(path) for path in paths]
    if RECORD in names:
        raise SaveError(f"cannot save {RECORD!r}: hpckit reserves the name; rename it")
    lists = {
        full_name(path[:depth])
        for path in paths
        for depth in range(1, len(path))
        if type(path[depth]) is int
    }
    guessed = guess(names)
    if lists == guessed:
        return {}
    return {RECORD: {"lists": [*sorted(lists - guessed)], "dicts": [*sorted(guessed - lists)]}}


def lists_of(checkpoint: Checkpoint) -> set[str]:
    """Returns the full names of the branches of a checkpoint that are lists. Reads all tables."""
    values = checkpoint.values()
    return lists_in([*checkpoint.tensors(), *values], values)


def lists_in(names: Iterable[str], values: Mapping[str, Json]) -> set[str]:
    """As `lists_of`, for leaves with these names; `values` has those that are not tensors."""
    lists = guess(names)
    for name, is_list in _outlined(values):
        (lists.add if is_list else lists.discard)(name)
    said = values.get(RECORD)
    if isinstance(said, dict):
        lists |= _texts(said.get("lists"))
        lists -= _texts(said.get("dicts"))
    for name, kind in branches_of(values).items():
        (lists.add if kind in LISTS else lists.discard)(name)
    return lists


def guess(names: Iterable[str]) -> set[str]:
    """Returns the branches that are lists according to the names of the leaves below them."""
    children: dict[str, set[str]] = {}
    for name in names:
        branch = ""
        for segment in name.split("/"):
            children.setdefault(branch, set()).add(segment)
            branch = f"{branch}/{segment}"
    found = {
        branch
        for branch, keys in children.items()
        if branch and "0" in keys and keys == {str(place) for place in range(len(keys))}
    }
    return {branch[1:] for branch in found if not _is_optimizer_state(branch, children)}


def keys(name: str, lists: set[str], without: Iterable[str] = ()) -> Keys:
    """Returns the keys that lead to the leaf with this full name, with numbers for list indexes,
    and without the item's name if it is one of `without`. The first is always a string, since a
    state is a dict."""
    found: list[str | int] = []
    branch = ""
    for segment, key in zip(name.split("/"), path_of(name), strict=True):
        is_place = branch in lists and len(key) <= _DIGITS and key.isascii() and key.isdecimal()
        found.append(int(key) if is_place else key)
        branch = f"{branch}/{segment}" if len(found) > 1 else segment
    first, *rest = found[-len(inner_path(name, [*without])) :]
    return (str(first), *rest)


def _is_optimizer_state(branch: str, children: Mapping[str, set[str]]) -> bool:
    parent, _, key = branch.rpartition("/")
    return key == "state" and "param_groups" in children[parent]


def _outlined(values: Mapping[str, Json]) -> Iterator[tuple[str, bool]]:
    """Yields the containers of optimizers, and whether each is a list."""
    for name, value in values.items():
        for outlines, state in _OUTLINES.items():
            item, is_outline, rest = name.partition(outlines)
            if is_outline and "/" not in item:
                yield from _branches(f"{item}{state}{rest}", decode(value))


def _branches(name: str, outline: Any) -> Iterator[tuple[str, bool]]:
    match outline:
        case ("list" | "tuple" | "dict" as kind, list(children)):
            yield name, kind != "dict"
            for child in children:
                match child:
                    case (key, inner):
                        yield from _branches(f"{name}/{full_name([key])}", inner)


def _texts(said: Json) -> set[str]:
    return {one for one in said if isinstance(one, str)} if isinstance(said, list) else set()
