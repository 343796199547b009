"""Nested state as flat `name/sub/key` leaves, and back: tensors here, plain values there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from checkpointing.dtypes import is_placeholder
from checkpointing.placement import held
from checkpointing.values import Json, all_scalar, decode, encode

_TENSOR_TYPES = (Tensor, torch.nn.Parameter, torch.nn.Buffer, DTensor)


class Branch(dict[str, Any]):
    """A dict whose entries are leaves of their own, even where none of them is a tensor."""


@dataclass
class Leaves:
    """The live tensors of a tree, and JSON copies of its values."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Json] = field(default_factory=dict)
    stepped: set[str] = field(default_factory=set)  # tensors that steps of optimizers alone change
    whole: set[str] = field(default_factory=set)  # tensors that one rank saves, not several a part
    plain: set[str] = field(default_factory=set)  # small ones that are to be equal on all ranks
    unlike: set[str] = field(default_factory=set)  # tensors and values that ranks may have apart

    def add(self, others: Leaves) -> None:
        """Take in the leaves of another tree.

        Raises:
            TypeError: one of the same name is here already.
        """
        for path, tensor in others.tensors.items():
            _add(self.tensors, path, tensor)
        for path, value in others.values.items():
            _add(self.values, path, value)


def flatten(tree: object, path: str, into: Leaves) -> None:
    """Add the leaves of `tree` under `path`. A part without any tensor is one value leaf.

    Raises:
        TypeError: something that can be neither, with its place in the tree.
    """
    if isinstance(tree, Tensor):
        _check_tensor(tree, path)
        _add(into.tensors, path, tree)
    elif _is_branch(tree):
        for key, child in _children(tree):
            flatten(child, join(path, key), into)
    else:
        _add(into.values, path, encode(tree, path))


def unflatten(template: Any, path: str, values: Mapping[str, Json]) -> Any:
    """A tree of the form of `template`: its own tensors, and the given values."""
    if isinstance(template, Tensor):
        return template
    if not _is_branch(template):
        return decode(values[path])
    children = {
        key: unflatten(child, join(path, key), values) for key, child in _children(template)
    }
    return type(template)(children if isinstance(template, dict) else children.values())


def update_in_place(live: Any, loaded: Any) -> Any:
    """`loaded`, but in the dicts and lists of `live` where there are such, so that whoever holds
    one of these sees what was restored."""
    if type(live) is not type(loaded):
        return loaded
    if isinstance(live, dict):
        merged = {k: update_in_place(live.get(k), v) for k, v in loaded.items()}
        live.clear()
        live.update(merged)
        return live
    if isinstance(live, list):
        live[:] = loaded
        return live
    return loaded


def join(path: str, key: object) -> str:
    """`path` and one more segment; '/' in a key is escaped as in a JSON pointer."""
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"


def _children(tree: Any) -> Iterator[tuple[Any, Any]]:
    yield from tree.items() if isinstance(tree, dict) else enumerate(tree)


def _is_branch(tree: object) -> bool:
    if isinstance(tree, Branch):
        return True
    if not isinstance(tree, dict | list | tuple):
        return False
    children = tree.values() if isinstance(tree, dict) else tree
    if all_scalar(children):
        return False
    return any(isinstance(child, Tensor) or _is_branch(child) for child in children)


def _add(leaves: dict[str, Any], path: str, leaf: Any) -> None:
    if path in leaves:
        raise TypeError(f"two things in the state are both named {path!r}: rename one of them")
    leaves[path] = leaf


def _check_tensor(tensor: Tensor, path: str) -> None:
    if type(tensor) not in _TENSOR_TYPES:
        kind = f"a tensor of class {type(tensor).__qualname__}"
    elif tensor.is_meta:
        kind = "a tensor on the meta device, without data: materialise it first (to_empty)"
    elif tensor.layout is not torch.strided or tensor.is_quantized or is_placeholder(tensor.dtype):
        kind = f"a tensor of layout {tensor.layout}, dtype {tensor.dtype}"
    else:
        if isinstance(tensor, DTensor):
            held(path, tensor)
        return
    raise TypeError(f"cannot save {path!r}: {kind}; plain dense tensors and DTensors can be saved")
