"""Converts full names of tensors and values ("model/layers.0.weight") to other formats' dotted
names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from checkpointing.errors import FormatError
from checkpointing.format.values.branch_kinds import RECORD, escaped, unescaped
from checkpointing.format.values.json_values import Json
from checkpointing.store.checkpoint import Checkpoint

Path = tuple[str, ...]


def path_of(name: str) -> Path:
    """Returns the keys that lead to the entry with this full name, unescaped."""
    return tuple(map(unescaped, name.split("/")))


def full_name(path: Iterable[object]) -> str:
    """Returns the full name of the entry that these keys lead to."""
    return "/".join(map(escaped, path))


def check_item(item: str) -> None:
    """Raises ValueError if `item` cannot be the name of an item."""
    if not item or "/" in item:
        raise ValueError(f"item {item!r}: a name without '/', such as 'model'")


def dotted(names: Iterable[str], *, without: Collection[str] = ()) -> dict[str, str]:
    """Returns dotted names by full name; all are different.

    Args:
        without: items whose names are left out, except where an item is itself one tensor or value.

    Raises:
        FormatError: two names would be the same.
    """
    found: dict[str, str] = {}
    owners: dict[str, str] = {}
    for name in names:
        text = ".".join(inner_path(name, without))
        if owners.setdefault(text, name) != name:
            raise FormatError(
                f"{owners[text]!r} and {name!r} would both be named {text!r} there; export fewer "
                "items at a time"
            )
        found[name] = text
    return found


def inner_path(name: str, without: Collection[str]) -> Path:
    """As `path_of`, without the item's name if it is one of `without`."""
    path = path_of(name)
    return path[1:] if len(path) > 1 and path[0] in without else path


def items_of(tensors: Iterable[str]) -> set[str]:
    """Returns the items that the tensors belong to."""
    return {path_of(name)[0] for name in tensors}


def chosen(checkpoint: Checkpoint, items: Sequence[str] | None) -> list[str]:
    """Returns the items to export, in the checkpoint's order; all but `RECORD` if `items` is None.

    Raises:
        KeyError: there is no such item.
    """
    for item in items or ():
        checkpoint.outline(item)
    if items is None:
        return [name for name in checkpoint.items if name != RECORD]
    return [name for name in checkpoint.items if name in items]


def values_of(checkpoint: Checkpoint, items: Sequence[str]) -> dict[str, Json]:
    """Returns the encoded values of these items by full name."""
    return {
        name: value for item in items for name, value in checkpoint.outline(item).values.items()
    }
