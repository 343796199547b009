"""Converts nested state to flat `name/sub/key` leaves and back: tensors on one side, plain values
on the other."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from checkpointing.distributed_classes import dtensor_class, is_dtensor
from checkpointing.format.torch_dtypes import is_placeholder
from checkpointing.format.values import registered_classes
from checkpointing.format.values.branch_kinds import BranchKind, branch_kind, escaped
from checkpointing.format.values.json_values import SCALARS, Json, all_scalar, encode
from checkpointing.layout.dtensor_placement import local_shard

_TEXT = frozenset((str,))
_TENSOR_TYPES = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Branch(dict[str, Any]):
    """A dict whose entries are separate leaves, even if none of them is a tensor."""


@dataclass
class Leaves:
    """The live tensors of a tree, and JSON copies of its values."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Json] = field(default_factory=dict)
    # tensors that only the steps of optimizers change
    stepped: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)  # tensors that one rank saves whole
    plain: set[str] = field(default_factory=set)  # small tensors that should be equal on all ranks
    alike: set[str] = field(default_factory=set)  # parameters, and the state of optimizers
    # tensors and values that may differ between ranks
    unlike: set[str] = field(default_factory=set)
    containers: dict[str, BranchKind] = field(
        default_factory=dict
    )  # of the branches whose kind the names do not show

    def add(self, others: Leaves) -> None:
        """Add the leaves of another tree.

        Raises:
            TypeError: there is a leaf of the same name already.
        """
        mine, theirs = (self.tensors, self.values), (others.tensors, others.values)
        if not all(one.keys().isdisjoint(other) for one in mine for other in theirs):
            taken = {*self.tensors, *self.values}
            raise named_twice(next(n for one in theirs for n in one if n in taken))
        self.tensors |= others.tensors
        self.values |= others.values
        self.containers |= others.containers

    def put(self, path: str, leaf: Tensor | Json) -> None:
        """Add one leaf; raises as `add`."""
        if path in self.tensors or path in self.values:
            raise named_twice(path)
        if isinstance(leaf, Tensor):
            self.tensors[path] = leaf
        else:
            self.values[path] = leaf


def flatten(tree: object, path: str, into: Leaves) -> None:
    """Add the leaves of `tree` under `path`. A subtree without tensors becomes one value leaf.

    Raises:
        TypeError: something is neither; the message says where in the tree.
    """
    if isinstance(tree, Tensor):
        check_tensor(tree, path)
        into.put(path, tree)
    elif is_branch(tree):
        _check_branch(tree, path)
        if not isinstance(tree, Branch) and (found := branch_kind(tree)) is not None:
            into.containers[path] = found
        start = join(path, "")
        for key, child in children(tree, path):
            name, kind = start + escaped(key), type(child)
            if kind in SCALARS:  # most leaves of optimizers
                if name in into.tensors or name in into.values:
                    raise named_twice(name)
                into.values[name] = encode(child, name)
            elif kind in _TENSOR_TYPES:  # most others
                check_tensor(child, name)
                into.put(name, child)
            else:
                flatten(child, name, into)
    else:
        into.put(path, encode(tree, path))


def unflatten(template: Any, path: str, values: Mapping[str, Any]) -> Any:
    """Returns a tree of the form of `template`, with its own tensors and the given values."""
    if isinstance(template, Tensor):
        return template
    if not is_branch(template):
        return values[path]
    start, found = join(path, ""), list[tuple[Any, Any]]()
    for key, child in children(template, path):
        kind = type(child)
        if kind is Tensor:
            found.append((key, child))
        elif kind in SCALARS:  # most leaves of optimizers
            found.append((key, values[start + escaped(key)]))
        else:
            found.append((key, unflatten(child, start + escaped(key), values)))
    return rebuilt(template, found)


def rebuilt(tree: Any, pairs: Iterable[tuple[Any, Any]]) -> Any:
    """Returns a branch like `tree` with these children under the same keys."""
    found = dict(pairs)
    if registered_classes.name_of(tree) is not None:
        return registered_classes.made(type(tree), found)
    if type(tree) in (list, tuple):
        return type(tree)(found.values())
    if isinstance(tree, tuple):
        return tuple.__new__(type(tree), found.values())
    like = copy.copy(tree)  # with the attributes that a subclass has besides its content
    like.clear()
    like.update(found) if isinstance(like, dict) else like.extend(found.values())
    return like


def untie_tensors(tree: Any, seen: set[int] | None = None) -> Any:
    """Returns the tree with a separate tensor for each repeated occurrence of one, such as the
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
    """Returns `loaded`, but within the dicts, lists, arrays and dataclasses of `live` where there
    are such, so that whatever refers to one of these sees the restored content."""
    if type(live) is not type(loaded):
        return loaded
    if isinstance(live, np.ndarray):
        return _array_in_place(live, loaded)
    if registered_classes.name_of(live) is not None and registered_classes.is_changeable(live):
        for key, child in registered_classes.fields_of(loaded, "").items():
            object.__setattr__(live, key, update_in_place(getattr(live, key, None), child))
        return live
    if isinstance(live, dict):
        if all_scalar(loaded.values()):
            merged = dict(loaded)
        else:
            merged = {k: update_in_place(live.get(k), v) for k, v in loaded.items()}
        live.clear()
        live.update(merged)
        return live
    if isinstance(live, list):
        live[:] = loaded
        return live
    return loaded


def join(path: str, key: object) -> str:
    """Returns `path` with one more segment; '/' in a key is escaped as in a JSON pointer."""
    return f"{path}/{escaped(key)}"


def is_branch(tree: object) -> bool:
    """Whether the tree has a tensor below it."""
    if type(tree) in SCALARS:  # most leaves of optimizers
        return False
    if isinstance(tree, Branch):
        return True
    if isinstance(tree, dict | list | tuple):
        if all_scalar(tree.values() if isinstance(tree, dict) else tree):
            return False
    elif registered_classes.name_of(tree) is None:
        return False
    return any(isinstance(c, Tensor) or is_branch(c) for _, c in children(tree, ""))


def children(tree: Any, path: str) -> Iterator[tuple[Any, Any]]:
    """Yields the keys and children of a branch.

    Args:
        path: path of the branch, for the error; raises as `registered_classes.fields_of`.
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


def named_twice(path: str) -> TypeError:
    """Returns the error for two leaves of one name."""
    return TypeError(f"two entries of the state are both named {path!r}: rename one of them")


def _check_branch(tree: Any, path: str) -> None:
    """Check that a branch with tensors can be rebuilt and that its keys are distinct as text."""
    if registered_classes.name_of(tree) is None and registered_classes.is_named_tuple(tree):
        name = type(tree).__qualname__
        raise TypeError(
            f"cannot save {type(tree).__module__}.{name} at {path!r}: register the class: "
            f"checkpointing.register({name})"
        )
    if isinstance(tree, dict) and not _TEXT.issuperset(map(type, tree)):
        names: dict[str, Any] = {}
        for key in tree:
            if (other := names.setdefault(str(key), key)) is not key:
                raise TypeError(
                    f"two entries of the state are both named {join(path, key)!r}: the keys "
                    f"{other!r} and {key!r} of a dict; rename one of them"
                )


def check_tensor(tensor: Tensor, path: str) -> None:
    """Raise TypeError if the tensor cannot be saved; the message names its path and says why."""
    if type(tensor) not in _TENSOR_TYPES and type(tensor) is not dtensor_class():
        kind = f"a tensor of class {type(tensor).__qualname__}"
        if type(tensor).__name__ == "ShardedTensor":
            kind += " (FullyShardedDataParallel makes DTensors if it is given a device_mesh)"
    elif tensor.is_meta:
        kind = "a tensor on the meta device, without data: materialise it first (to_empty)"
    elif tensor.is_nested:
        kind = "a nested tensor"
    elif tensor.layout is not torch.strided or tensor.is_quantized or is_placeholder(tensor.dtype):
        kind = f"a tensor of layout {tensor.layout}, dtype {tensor.dtype}"
    else:
        if is_dtensor(tensor):
            local_shard(path, tensor)
        return
    raise TypeError(f"cannot save {path!r}: {kind}; plain dense tensors and DTensors can be saved")
