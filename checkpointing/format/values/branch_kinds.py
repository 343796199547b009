"""Records the kind of each branch of a state where the names of the leaves below it do not show it:
a list, a tuple, a dict with keys other than strings, an object of a registered class.

A checkpoint has this in the value `RECORD`: "branches" has the kind of each such branch, and of
each dict whose keys could be list indexes; "lists" and "dicts" name the branches that are misread
by a reader which takes exactly the branches with the keys 0, 1, ... without a gap for lists.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from checkpointing.format.values import registered_classes
from checkpointing.format.values.json_values import Json, decode, encode

RECORD = "dcp.containers"
LISTS = ("list", "tuple")

_NUMBER = re.compile(r"0|-?[1-9][0-9]*")
_WORDS = {"list": "a list", "tuple": "a tuple", "dict": "a dict whose keys are text"}
_WORDS |= {"numbers": "a dict whose keys are numbers"}


def escaped(key: object) -> str:
    """Returns a key as it is written in the name of a leaf, escaped as in a JSON pointer."""
    text = str(key)
    if "~" in text or "/" in text:
        return text.replace("~", "~0").replace("/", "~1")
    return text


def unescaped(segment: str) -> str:
    """Returns the string that was given to `escaped`."""
    return segment.replace("~1", "/").replace("~0", "~")


@dataclass(frozen=True)
class BranchKind:
    """A branch of a state."""

    kind: Json
    is_placed: bool  # whether its keys are 0, 1, ... without a gap


def branch_kind(tree: Any) -> BranchKind | None:
    """Returns the kind of a branch; None for a dict whose keys are strings other than numbers.

    Raises:
        TypeError: a key of a dict is not a plain value.
    """
    if (name := registered_classes.name_of(tree)) is not None:
        return BranchKind({"class": name}, is_placed=False)
    if isinstance(tree, list | tuple):
        return BranchKind("list" if isinstance(tree, list) else "tuple", is_placed=True)
    kind = _kind_of_dict(tree)
    return None if kind is None else BranchKind(kind, _are_places({str(key) for key in tree}))


def _kind_of_dict(tree: Mapping[Any, Any]) -> Json:
    others = [key for key in tree if type(key) is not str]
    has_numbers = any(type(key) is str and _NUMBER.fullmatch(key) for key in tree)
    if not others:
        return "dict" if has_numbers else None
    if not has_numbers and all(type(key) is int for key in others):
        return "numbers"
    return {"keys": [encode(key, "a key") for key in others]}


def _are_places(keys: set[str]) -> bool:
    return keys == {str(place) for place in range(len(keys))}


def keys_by_segment(kind: Json, segments: Iterable[str]) -> dict[str, Any]:
    """Returns the keys of a dict of this kind, by the segments that represent them in names."""
    found: dict[str, Any] = {segment: segment for segment in segments}
    if kind == "numbers":
        return {text: int(text) if _NUMBER.fullmatch(text) else text for text in found}
    if isinstance(kind, dict) and isinstance(kind.get("keys"), list):
        keys = (decode(one) for one in kind["keys"])  # type: ignore[union-attr]
        found |= {str(key): key for key in keys if str(key) in found}
    return found


def record(containers: Mapping[str, BranchKind], names: Collection[str]) -> dict[str, Json]:
    """Returns the value to save for the branches of a state, given by full name.

    Args:
        names: names of all leaves.
    """
    lists, dicts = [], []
    for name, one in sorted(containers.items()):
        is_guessed = one.is_placed and not _is_optimizer_state(name, names)
        if one.kind in LISTS and not is_guessed:
            lists.append(name)
        elif one.kind not in LISTS and is_guessed:
            dicts.append(name)
    branches = {name: one.kind for name, one in sorted(containers.items())}
    return {RECORD: {"lists": [*lists], "dicts": [*dicts], "branches": branches}}


def branches_of(values: Mapping[str, Json]) -> Mapping[str, Json]:
    """Returns the kinds of branches that a checkpoint with these values has; none for one from
    before they were saved."""
    said = values.get(RECORD)
    found = said.get("branches") if isinstance(said, dict) else None
    return found if isinstance(found, dict) else {}


def in_words(kind: Json) -> str:
    """Describes a kind in words."""
    if isinstance(kind, dict):
        if "class" in kind:
            return f"an object of class {kind['class']!r}"
        return "a dict with keys that are not text"
    return _WORDS.get(str(kind), f"of the unknown kind {kind!r}")


def _is_optimizer_state(name: str, names: Collection[str]) -> bool:
    """Whether it is the "state" of a torch optimizer's state_dict(), which is assumed to be a
    dict."""
    parent, _, key = name.rpartition("/")
    groups = f"{parent}/param_groups"
    return key == "state" and any(n == groups or n.startswith(f"{groups}/") for n in names)
