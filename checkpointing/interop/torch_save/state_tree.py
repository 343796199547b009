"""Converts a tree of containers, tensors and values to leaves by full name and a record of its
structure, and back.

An outline has what names do not show: whether a branch was a dict, an OrderedDict, a list or a
tuple, its original keys, and their order. It is a plain value, saved in `RECORD` below `TREE`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.values.branch_kinds import RECORD
from checkpointing.format.values.json_values import Json, decode, encode
from checkpointing.interop.tensor_names import full_name

TREE = "tree"
Outline = Any
"""None: a leaf. (kind, keys, outlines): a dict or OrderedDict; keys are None for a list or tuple.
An OrderedDict with attributes has them as a fourth element."""

_DICTS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict}
_ROWS: dict[str, type[list[Any]] | type[tuple[Any, ...]]] = {"list": list, "tuple": tuple}
_KINDS = {kind: name for name, kind in (*_DICTS.items(), *_ROWS.items())}


@dataclass
class FlattenedTree:
    """The leaves and values of a tree."""

    tensors: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Json] = field(default_factory=dict)
    paths: list[tuple[str | int, ...]] = field(default_factory=list)
    """The keys that lead to each leaf, with numbers for list indexes."""


def flatten_tree(
    tree: Any, is_tensor: Callable[[Any], bool], path: tuple[str | int, ...], into: FlattenedTree
) -> Outline:
    """Add the leaves of a tree. Returns its outline. A branch without tensors is one value.

    Raises:
        TypeError: something is not a plain value.
        FormatError: two leaves have one name.
    """
    kind = _KINDS.get(type(tree))
    is_leaf = is_tensor(tree)
    if not is_leaf and kind is not None and _is_branch(tree, is_tensor):
        rows = not isinstance(tree, dict)
        pairs = [*(enumerate(tree) if rows else tree.items())]
        below = [
            flatten_tree(child, is_tensor, (*path, key if rows else str(key)), into)
            for key, child in pairs
        ]
        keys = None if rows else [key for key, _ in pairs]
        attributes = dict(vars(tree)) if type(tree) is OrderedDict else {}
        return (kind, keys, below, *([attributes] if attributes else []))
    name = full_name(path)
    if name in into.tensors or name in into.values or name == RECORD:
        raise FormatError(f"two entries would both be named {name!r}: rename one of them")
    into.paths.append(path)
    if is_leaf:
        into.tensors[name] = tree
    else:
        into.values[name] = encode(tree, name)
    return None


def _is_branch(tree: Any, is_tensor: Callable[[Any], bool]) -> bool:
    if type(tree) is OrderedDict and vars(tree):
        return True
    if type(tree) not in _KINDS or isinstance(tree, Counter):
        return False
    children = tree.values() if isinstance(tree, dict) else tree
    return any(is_tensor(child) or _is_branch(child, is_tensor) for child in children)


def outline_in(values: Mapping[str, Json]) -> Outline:
    """Returns the outline among the values of a checkpoint, or None."""
    said = values.get(RECORD)
    return decode(said[TREE]) if isinstance(said, dict) and TREE in said else None


def rebuild_tree(outline: Outline, leaves: Mapping[str, Any], items: Collection[str]) -> Any:
    """Returns the tree of these leaves.

    Args:
        items: the items to include; those that do not exist are left out.

    Raises:
        DamagedError: the outline does not match the leaves.
    """
    try:
        kind, keys, below, *_ = outline
        kept = [place for place, key in enumerate(keys) if full_name([key]) in items]
        top = (kind, [keys[i] for i in kept], [below[i] for i in kept])
        return _built(top, leaves, ())
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"the record of how its leaves were nested does not fit: {error}"
        ) from error


def _built(outline: Outline, leaves: Mapping[str, Any], path: tuple[object, ...]) -> Any:
    if outline is None:
        return leaves[full_name(path)]
    kind, keys, below, *attributes = outline
    places = range(len(below)) if keys is None else keys
    children = [
        _built(inner, leaves, (*path, key)) for key, inner in zip(places, below, strict=True)
    ]
    if kind in _ROWS:
        return _ROWS[kind](children)
    made = _DICTS[kind](zip(keys, children, strict=True))
    if attributes:
        vars(made).update(attributes[0])
    return made
