"""Nested state as flat `name/sub/key` leaves, and back: tensors here, plain values there."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from checkpointing.format.torch_dtypes import is_placeholder
from checkpointing.format.values import registered_classes
from checkpointing.format.values.branch_kinds import BranchKind, branch_kind, escaped
from checkpointing.format.values.json_values import Json, all_scalar, encode
from checkpointing.layout.dtensor_placement import local_shard

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
    alike: set[str] = field(default_factory=set)  # parameters, and the state of optimizers
    unlike: set[str] = field(default_factory=set)  # tensors and values that ranks may have apart
    containers: dict[str, BranchKind] = field(
        default_factory=dict
    )  # of which the names do not tell

    def add(self, others: Leaves) -> None:
        """Take in the leaves of another tree.

        Raises:
            TypeError: one of the same name is here already.
        """
        for path, tensor in others.tensors.items():
            self.put(path, tensor)
        for path, value in others.values.items():
            self.put(path, value)
        self.containers |= others.containers

    def put(self, path: str, leaf: Tensor | Json) -> None:
        """Take in one leaf; raises as `add`."""
        if path in self.tensors or path in self.values:
            raise TypeError(f"two things in the state are both named {path!r}: rename one of them")
        if isinstance(leaf, Tensor):
            self.tensors[path] = leaf
        else:
            self.values[path] = leaf


def flatten(tree: object, path: str, into: Leaves) -> None:
    """Add the leaves of `tree` under `path`. A part without any tensor is one value leaf.

    Raises:
        TypeError: something that can be neither, with its place in the tree.
    """
    if isinstance(tree, Tensor):
        _check_tensor(tree, path)
        into.put(path, tree)
    elif is_branch(tree):
        _check_branch(tree, path)
        if not isinstance(tree, Branch) and (found := branch_kind(tree)) is not None:
            into.containers[path] = found
        for key, child in children(tree, path):
            flatten(child, join(path, key), into)
    else:
        into.put(path, encode(tree, path))


def unflatten(template: Any, path: str, values: Mapping[str, Any]) -> Any:
    """A tree of the form of `template`: its own tensors, and the given values."""
    if isinstance(template, Tensor):
        return template
    if not is_branch(template):
        return values[path]
    return rebuilt(
        template,
        [(k, unflatten(child, join(path, k), values)) for k, child in children(template, path)],
    )


def rebuilt(tree: Any, pairs: Iterable[tuple[Any, Any]]) -> Any:
    """A branch like `tree` with these children, by the same keys."""
    found = dict(pairs)
    if registered_classes.name_of(tree) is not None:
        return registered_classes.made(type(tree), found)
    if type(tree) in (list, tuple):
        return type(tree)(found.values())
    if isinstance(tree, tuple):
        return tuple.__new__(type(tree), found.values())
    like = copy.copy(tree)  # with what a subclass has beside its content
    like.clear()
    like.update(found) if isinstance(like, dict) else like.extend(found.values())
    return like


def untie_tensors(tree: Any, seen: set[int] | None = None) -> Any:
    """The tree, with a tensor of its own in each further place where one is met again: as the
    learning rates of a new SequentialLR, which are those of its first scheduler until it steps."""
    seen = set() if seen is None else seen
    if isinstance(tree, Tensor):
        if id(tree) in seen:
            return tree.detach().clone()
        seen.add(id(tree))
        return tree
    if type(tree) not in (dict, OrderedDict, list, tuple) or not is_branch(tree):
        return tree
    if isinstance(tree, dict):
        return type(tree)((key, untie_tensors(child, seen)) for key, child in tree.items())
    return type(tree)(untie_tensors(child, seen) for child in tree)


def update_in_place(live: Any, loaded: Any) -> Any:
    """`loaded`, but in the dicts, lists, arrays and dataclasses of `live` where there are such, so
    that whoever holds one of these sees what was restored."""
    if type(live) is not type(loaded):
        return loaded
    if isinstance(live, np.ndarray):
        return _array_in_place(live, loaded)
    if registered_classes.name_of(live) is not None and registered_classes.is_changeable(live):
        for key, child in registered_classes.fields_of(loaded, "").items():
            object.__setattr__(live, key, update_in_place(getattr(live, key, None), child))
        return live
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
    return f"{path}/{escaped(key)}"


def is_branch(tree: object) -> bool:
    """Whether there is a tensor in it, below it."""
    if isinstance(tree, Branch):
        return True
    if isinstance(tree, dict | list | tuple):
        if all_scalar(tree.values() if isinstance(tree, dict) else tree):
            return False
    elif registered_classes.name_of(tree) is None:
        return False
    return any(isinstance(c, Tensor) or is_branch(c) for _, c in children(tree, ""))


def children(tree: Any, path: str) -> Iterator[tuple[Any, Any]]:
    """What is in a branch, with the keys.

    Args:
        path: its own, for the error; raises as `declared.fields_of`.
    """
    if registered_classes.name_of(tree) is not None:
        yield from registered_classes.fields_of(tree, path).items()
    else:
        yield from tree.items() if isinstance(tree, dict) else enumerate(tree)


def _array_in_place(live: Any, loaded: Any) -> Any:
    if (live.dtype, live.shape) != (loaded.dtype, loaded.shape) or not live.flags.writeable:
        return loaded
    live[...] = loaded
    return live


def _check_branch(tree: Any, path: str) -> None:
    """That what holds tensors can be made again, and that its keys can be told apart."""
    if registered_classes.name_of(tree) is None and registered_classes.is_named_tuple(tree):
        name = type(tree).__qualname__
        raise TypeError(
            f"cannot save {type(tree).__module__}.{name} at {path!r}: declare the class: "
            f"checkpointing.register({name})"
        )
    if isinstance(tree, dict):
        names: dict[str, Any] = {}
        for key in tree:
            if (other := names.setdefault(str(key), key)) is not key:
                raise TypeError(
                    f"two things in the state are both named {join(path, key)!r}: the keys "
                    f"{other!r} and {key!r} of a dict; rename one of them"
                )


def _check_tensor(tensor: Tensor, path: str) -> None:
    if type(tensor) not in _TENSOR_TYPES:
        kind = f"a tensor of class {type(tensor).__qualname__}"
    elif tensor.is_meta:
        kind = "a tensor on the meta device, without data: materialise it first (to_empty)"
    elif tensor.layout is not torch.strided or tensor.is_quantized or is_placeholder(tensor.dtype):
        kind = f"a tensor of layout {tensor.layout}, dtype {tensor.dtype}"
    else:
        if isinstance(tensor, DTensor):
            local_shard(path, tensor)
        return
    raise TypeError(f"cannot save {path!r}: {kind}; plain dense tensors and DTensors can be saved")
