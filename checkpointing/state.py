"""The caller's `state`: how each kind of thing in it gives its tree and takes it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from checkpointing.dtypes import dtype_name
from checkpointing.structure import Inventory, Wants, absent
from checkpointing.tree import Branch, Leaves, flatten, join, unflatten, update_in_place

_OPTIMIZER_STATE = "state."  # what torch's flat keys of an optimizer's tensors begin with
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...


@runtime_checkable
class Stepped(Protocol):
    """A Stateful that is no optimizer, and has the state of some."""

    stepped_by: Sequence[Optimizer]


class Item(Protocol):
    """One entry of the state. The tensors in its tree are the live ones wherever possible."""

    def to_save(self) -> Any:
        """The tree to save."""

    def to_load(self) -> Any:
        """The tree to load into."""

    def load(self, tree: Any) -> None:
        """Take the tree of `to_load` back, now with the loaded content."""


class ModuleItem:
    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def to_load(self) -> Any:
        return get_model_state_dict(self._module)

    to_save = to_load

    def load(self, tree: Any) -> None:
        set_model_state_dict(self._module, tree)


class OptimizerItem:
    """An optimizer, flattened by the parameter names of its module, so that it can be resharded.

    torch makes up the state of an optimizer that has not stepped yet, by a step with zero
    gradients. That is the form to load into, but nothing to save (Adam's count would be 1) and
    nothing to train on with: a "fresh" optimizer is put back to having no state.
    """

    def __init__(self, name: str, optimizer: Optimizer, module: nn.Module) -> None:
        if not _parameters(optimizer) <= set(module.parameters()):
            raise ValueError(f"optimizer {name!r} has parameters that its module does not have")
        self._optimizer, self._module = optimizer, module
        self.fresh = not optimizer.state

    def to_load(self) -> Any:
        flat = get_optimizer_state_dict(self._module, self._optimizer, options=_FLAT)
        return Branch(flat)

    def to_save(self) -> Any:
        tree = self.to_load()
        if not self.fresh:
            return tree
        self.clear()
        kept = {key: leaf for key, leaf in tree.items() if not key.startswith(_OPTIMIZER_STATE)}
        return Branch(kept)

    def load(self, tree: Any) -> None:
        loaded = {parameter: dict(state) for parameter, state in self._optimizer.state.items()}
        ways = [_way_of(group) for group in self._optimizer.param_groups]
        set_optimizer_state_dict(self._module, self._optimizer, tree, options=_FLAT)
        for group, way in zip(self._optimizer.param_groups, ways, strict=True):
            group.update(way)
        # load_state_dict() casts state to its parameter's dtype (fp32 moments of bf16 weights):
        # put back the very tensors that were loaded into
        for parameter, state in loaded.items():
            tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
            self._optimizer.state[parameter].update(tensors)

    def clear(self) -> None:
        """Back to not having stepped."""
        self._optimizer.state.clear()


class StatefulItem:
    def __init__(self, held: Stateful) -> None:
        self._held = held

    def to_load(self) -> Any:
        return self._held.state_dict()

    to_save = to_load

    def load(self, tree: Any) -> None:
        self._held.load_state_dict(tree)


class PlainItem:
    """A tensor, or values, or a tree of both, held by the state itself."""

    def __init__(self, state: Mapping[str, Any], name: str) -> None:
        self._state, self._name = state, name

    def to_load(self) -> Any:
        return self._state[self._name]

    to_save = to_load

    def load(self, tree: Any) -> None:
        held = self._state[self._name]
        updated = update_in_place(held, tree)
        if updated is not held:
            cast(dict[str, Any], self._state)[self._name] = updated


def to_save(state: Mapping[str, Any]) -> Leaves:
    """All leaves of `state`: live tensors, and copies of the values.

    Raises:
        TypeError: something in it that cannot be saved, with its place.
        ValueError: an optimizer whose module cannot be told.
    """
    leaves = Leaves()
    for name, item in _items(state).items():
        flatten(item.to_save(), join("", name)[1:], leaves)
    return leaves


def optimizers(state: Mapping[str, Any]) -> list[Optimizer]:
    """Those that the state holds by themselves, and those that its items say to be stepped by."""
    held = [one for one in state.values() if isinstance(one, Optimizer)]
    return held + [
        one for item in state.values() if isinstance(item, Stepped) for one in item.stepped_by
    ]


class LoadTarget:
    """A state as the place to load into."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.leaves = Leaves()
        self._items = {join("", name)[1:]: item for name, item in _items(state).items()}
        self._trees = {path: item.to_load() for path, item in self._items.items()}
        for path, tree in self._trees.items():
            flatten(tree, path, self.leaves)

    def wants(self) -> Wants:
        specs = {n: (tuple(t.shape), dtype_name(t.dtype)) for n, t in self.leaves.tensors.items()}
        return Wants(specs, frozenset(self.leaves.values), tuple(self._optimizers()))

    def finish(self, inventory: Inventory) -> None:
        """Hand every entry its tree, once the wanted tensors hold the loaded bytes."""
        # values that are not wanted (of an optimizer saved before it stepped) stay what they are
        values = {**self.leaves.values, **inventory.values}
        for path, item in self._items.items():
            item.load(unflatten(self._trees[path], path, values))
        optimizers = self._optimizers()
        for prefix in absent(optimizers, inventory):
            optimizers[prefix].clear()

    def abandon(self) -> None:
        """Leave the state as it was found."""
        for optimizer in self._optimizers().values():
            if optimizer.fresh:
                optimizer.clear()

    def _optimizers(self) -> dict[str, OptimizerItem]:
        """The optimizers, by what the names of their state begin with."""
        return {
            join(path, _OPTIMIZER_STATE): item
            for path, item in self._items.items()
            if isinstance(item, OptimizerItem)
        }


def _items(state: Mapping[str, Any]) -> dict[str, Item]:
    return {name: _item(name, state) for name in state}


def _item(name: str, state: Mapping[str, Any]) -> Item:
    held = state[name]
    if isinstance(held, nn.Module):
        return ModuleItem(held)
    if isinstance(held, Optimizer):
        return OptimizerItem(name, held, _module_of(name, state))
    if isinstance(held, Stateful):
        return StatefulItem(held)
    return PlainItem(state, name)


def _module_of(name: str, state: Mapping[str, Any]) -> nn.Module:
    """The module that optimizer `name` belongs to: the only one, or the one that names tell."""
    modules = {n: held for n, held in state.items() if isinstance(held, nn.Module)}
    if len(modules) == 1:
        return next(iter(modules.values()))
    if not modules:
        raise ValueError(f"optimizer {name!r} is saved by its module's names: add the module too")
    kind, _, named = name.partition(".")
    if kind == "optimizer" and (named or "model") in modules:
        return modules[named or "model"]
    raise ValueError(
        f"cannot tell which of the modules {sorted(modules)} optimizer {name!r} belongs to: "
        "name it 'optimizer.<name of the module>' ('optimizer' goes with 'model')"
    )


def _way_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """How its step is computed, which layout and devices decide anew each time."""
    return {key: group[key] for key in ("foreach", "fused", "capturable") if key in group}


def _parameters(optimizer: Optimizer) -> set[Any]:
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}
