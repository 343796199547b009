"""Adapters for the entries of the user's `state`: how each kind of object gives its tree and takes
it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from checkpointing.distributed_classes import has_flat_parameters, is_dtensor
from checkpointing.format.values.branch_kinds import RECORD, record
from checkpointing.format.values.json_values import decode
from checkpointing.state.optimizer_state import (
    CLASS,
    GROUP,
    OPTIONS,
    OWN,
    PLACE,
    STATE,
    WAYS,
    OptimizerItem,
    class_of,
)
from checkpointing.state.parameter_names import (
    buffer_names,
    parameter_names,
    without_wrappers,
    wrapper_prefix,
)
from checkpointing.state.per_rank import PerRank, blank, rank_and_world
from checkpointing.state.structure_comparison import Inventory
from checkpointing.state.tree import (
    Branch,
    Leaves,
    flatten,
    join,
    untie_tensors,
    update_in_place,
)

_SMALL = 1 << 20
"""Tensors outside modules and optimizers that have fewer bytes, such as the state of a random
number generator, are compared among ranks."""


def import_state_dicts() -> None:
    """Import torch's functions for the state of modules, so that no save waits for it: the first
    import takes half as long as that of torch."""
    import_module("torch.distributed.checkpoint.state_dict")


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...


class Item(Protocol):
    """One entry of the state. The tensors in its tree are the live ones wherever possible."""

    @property
    def problems(self) -> Sequence[str]:
        """Why a checkpoint does not fit, as found by the last `to_load`."""

    def to_save(self) -> Any:
        """Returns the tree to save."""

    def expected(self) -> Any:
        """Returns the tree that will be saved soon: with the optimizer state that does not exist
        yet."""

    def to_load(self, stored: Inventory) -> Any:
        """Returns the tree to load into, given what the checkpoint has for this entry."""

    def load(self, tree: Any) -> None:
        """Take back the tree of `to_load`, which now has the loaded content."""


class _SameTree:
    """Base of entries whose tree does not depend on what is loaded."""

    problems: Sequence[str] = ()

    def to_save(self) -> Any:
        raise NotImplementedError

    def expected(self) -> Any:
        return self.to_save()

    def to_load(self, stored: Inventory) -> Any:
        return self.to_save()


_Names: TypeAlias = "tuple[str, ...]"
_NAMES: WeakKeyDictionary[nn.Module, tuple[str, _Names, _Names]] = WeakKeyDictionary()
"""For each module that was saved, its `wrapper_prefix`, the names in its state_dict(), and those
without wrappers, which torch's `get_model_state_dict` gives them."""


def _module_state(module: nn.Module) -> dict[str, Any]:
    """Returns what torch's `get_model_state_dict` returns, in any order. It looks for wrappers in
    each name, and for flat parameters in each module, which takes twice as long as the state
    itself: it is only asked again when there are other names."""
    if has_flat_parameters(module):
        return _state_of_torch(module)
    with torch.no_grad():
        own = module.state_dict()
    prefix, names, known = wrapper_prefix(module), tuple(own), _NAMES.get(module)
    if known is not None and known[:2] == (prefix, names):
        return dict(zip(known[2], own.values(), strict=True))
    found = _state_of_torch(module)
    plain = tuple(without_wrappers(name, prefix) for name in names)
    is_known = found.keys() == set(plain) and len(found) == len(names)
    # of a part with this name it may be another time that it is a wrapper, or is none
    if names and is_known and all("module" not in name.split(".") for name in plain):
        _NAMES[module] = prefix, names, plain
    return found


def _state_of_torch(module: nn.Module) -> dict[str, Any]:
    """Returns the state of a module as torch names it."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    return Branch() if _is_empty(module) else get_model_state_dict(module)


def _is_empty(module: nn.Module) -> bool:
    """Whether the module has no state, as a loss, which torch's functions refuse."""
    return next(module.parameters(), None) is None and not module.state_dict()


class ModuleItem(_SameTree):
    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._expected: Any = None  # the tree that was returned by `expected`

    def to_save(self) -> Any:
        return _module_state(self._module)

    def expected(self) -> Any:
        self._expected = self.to_save()
        return self._expected

    def to_load(self, stored: Inventory) -> Any:
        return self.to_save() if self._expected is None else self._expected

    def buffers(self) -> Mapping[str, bool]:
        """Names of the buffers, which may differ among replicas of the module (the first rank's are
        the model's, which DistributedDataParallel gives to all others), and whether each replica
        does have its own, such as the running moments of a BatchNorm."""
        return buffer_names(self._module)

    def load(self, tree: Any) -> None:
        from torch.distributed.checkpoint.state_dict import set_model_state_dict

        if not _is_empty(self._module):
            set_model_state_dict(self._module, tree)


class FlatOptimizerItem:
    """An optimizer of a module that FSDP has put into flat parameters, whose names only torch
    knows. For one that has not stepped yet, torch makes up the state by a step with zero gradients:
    that is the form to load into, but must not be saved or trained with."""

    def __init__(self, optimizer: Optimizer, module: nn.Module) -> None:
        self._optimizer, self._module = optimizer, module
        self.problems: list[str] = []

    def to_save(self) -> Any:
        is_fresh = not self._optimizer.state
        tree = self._tree()
        if not is_fresh:
            return tree
        self._optimizer.state.clear()
        return Branch({key: leaf for key, leaf in tree.items() if not key.startswith(STATE)})

    def expected(self) -> Any:
        is_fresh = not self._optimizer.state
        tree = self._tree()
        if is_fresh:
            self._optimizer.state.clear()
        return tree

    def to_load(self, stored: Inventory) -> Any:
        is_stepped = any(n.startswith(STATE) for n in (*stored.tensors, *stored.values))
        tree = self.expected()
        if not is_stepped:
            tree = Branch({key: leaf for key, leaf in tree.items() if not key.startswith(STATE)})
        mine = class_of(self._optimizer)
        theirs = stored.values.get(CLASS, mine)
        self.problems = (
            [f"the optimizer was saved as {theirs}, but is {mine} here"] if theirs != mine else []
        )
        # What optimizers without flat parameters record besides is read and not used
        unused = {n: None for n in stored.values if n == CLASS or n.startswith((GROUP, PLACE))}
        return Branch(tree | unused)

    def load(self, tree: Any) -> None:
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            set_optimizer_state_dict,
        )

        tree = {leaf: it for leaf, it in tree.items() if leaf.startswith((STATE, OPTIONS))}
        ways = [_step_options(group) for group in self._optimizer.param_groups]
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        set_optimizer_state_dict(self._module, self._optimizer, tree, options=options)
        for group, way in zip(self._optimizer.param_groups, ways, strict=True):
            group.update(way)

    def _tree(self) -> Branch:
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            get_optimizer_state_dict,
        )

        options = StateDictOptions(flatten_optimizer_state_dict=True)
        tree = get_optimizer_state_dict(self._module, self._optimizer, options=options)
        return Branch(tree)


class StatefulItem(_SameTree):
    def __init__(self, held: Stateful) -> None:
        self._held = held

    def to_save(self) -> Any:
        return self._held.state_dict()

    def to_load(self, stored: Inventory) -> Any:
        return untie_tensors(self.to_save())

    def load(self, tree: Any) -> None:
        self._held.load_state_dict(tree)


class PerRankItem:
    """An entry that is declared as `PerRank`: a branch for each rank, of which this rank has its
    own."""

    def __init__(self, held: PerRank, name: str) -> None:
        self._held, self._name = held, name
        self._rank, self._world = rank_and_world()
        self._here: dict[str, Any] = {"held": held.held}
        inner = isinstance(held.held, Stateful)
        self._inner: Item = StatefulItem(held.held) if inner else PlainItem(self._here, "held")
        self.problems: Sequence[str] = ()
        self.is_elsewhere = False  # whether the checkpoint is of another number of ranks
        self._chosen: Any = None

    def to_save(self) -> Any:
        return Branch({f"rank{self._rank}": self._inner.to_save(), "world": self._world})

    expected = to_save

    def to_load(self, stored: Inventory) -> Any:
        self.problems, self.is_elsewhere = (), False
        tree, how = self._inner.to_save(), self._held.other_world
        world = decode(stored.values["world"]) if "world" in stored.values else self._world
        if world == self._world:
            return Branch({f"rank{self._rank}": tree, "world": world})
        if how == "error":
            self.problems = (
                f"{self._name!r} was saved for each of {world} ranks, but here are {self._world}: "
                "set PerRank(other_world=...) to convert it",
            )
        self.is_elsewhere = True
        ranks = range(world) if callable(how) else range(1)
        return Branch({**{f"rank{rank}": blank(tree) for rank in ranks}, "world": world})

    def choose(self, tree: Any) -> None:
        """Choose what this rank gets from the tree of another world size. Nothing else has changed
        yet."""
        how, every = self._held.other_world, [tree[key] for key in tree if key != "world"]
        self._chosen = how(every, self._rank, self._world) if callable(how) else every[0]

    def load(self, tree: Any) -> None:
        self._inner.load(self._chosen if self.is_elsewhere else tree[f"rank{self._rank}"])
        if isinstance(self._inner, PlainItem):
            self._held.held = self._here["held"]


class PlainItem(_SameTree):
    """A tensor, values, or a tree of both that the state holds directly."""

    def __init__(self, state: Mapping[str, Any], name: str) -> None:
        self._state, self._name = state, name

    def to_save(self) -> Any:
        return self._state[self._name]

    def load(self, tree: Any) -> None:
        held = self._state[self._name]
        updated = update_in_place(held, tree)
        if updated is not held:
            cast(dict[str, Any], self._state)[self._name] = updated


def to_save(state: Mapping[str, Any]) -> Leaves:
    """Returns all leaves of `state`: live tensors, and copies of the values.

    Raises:
        TypeError: something in it cannot be saved; the message says where it is.
        ValueError: it cannot be determined to which module an optimizer belongs.
    """
    items = items_of(state)
    if RECORD in state:
        raise TypeError(f"cannot save {RECORD!r}: hpckit reserves the name; rename it")
    leaves = Leaves()
    for name, item in items.items():
        path = join("", name)[1:]
        if isinstance(item, OptimizerItem):
            _add_item(item, item.leaves(path), path, leaves)
        else:
            flatten_item(item, item.to_save(), path, leaves)
    add_record(leaves)
    return leaves


def add_record(leaves: Leaves) -> None:
    """Add the record of the kinds of branches where the names do not show them."""
    if leaves.containers:
        leaves.values |= record(leaves.containers, {*leaves.tensors, *leaves.values})
        leaves.unlike.add(RECORD)  # it differs on ranks with other parts of the state


def flatten_item(item: Item, tree: Any, path: str, into: Leaves) -> None:
    """Add the leaves of an entry's tree, and what is known of them by its kind."""
    mine = Leaves()
    flatten(tree, path, mine)
    if isinstance(item, OptimizerItem | FlatOptimizerItem):
        starts = (join(path, STATE), join(path, OWN))
        mine.stepped = {name for name in mine.tensors if name.startswith(starts)}
        places = join(path, PLACE)
        mine.unlike = {name for name in mine.values if name.startswith(places)}
    _add_item(item, mine, path, into)


def _add_item(item: Item, mine: Leaves, path: str, into: Leaves) -> None:
    if isinstance(item, OptimizerItem | FlatOptimizerItem):
        into.stepped |= mine.stepped
        into.unlike |= mine.unlike
        into.alike |= mine.tensors.keys()
        mine.containers.clear()  # an optimizer records its containers itself
    elif isinstance(item, ModuleItem):
        buffers = {join(path, name): is_own for name, is_own in item.buffers().items()}
        into.whole |= buffers.keys() & mine.tensors.keys()
        into.unlike |= {name for name in into.whole if buffers.get(name)}
        into.alike |= mine.tensors.keys() - into.whole
    else:
        into.plain |= {
            name
            for name, one in mine.tensors.items()
            if one.nbytes < _SMALL and not is_dtensor(one)
        }
    into.add(mine)


def optimizers(state: Mapping[str, Any]) -> list[Optimizer]:
    """Returns the optimizers in the state, and those that its items name in `stepped_by`."""
    held = [one for one in state.values() if isinstance(one, Optimizer)]
    # isinstance() of a protocol takes ten times as long
    return held + [one for item in state.values() for one in getattr(item, "stepped_by", ())]


def items_of(state: Mapping[str, Any]) -> dict[str, Item]:
    """Returns the adapter of each entry. Raises as `to_save`."""
    if not isinstance(state, Mapping):
        raise TypeError(
            f"a state must be a dict of names, such as {{'model': model}}, got "
            f"{type(state).__name__}"
        )
    return {name: _item(name, state) for name in state}


def _item(name: str, state: Mapping[str, Any]) -> Item:
    held = state[name]
    if isinstance(held, nn.Module):
        return ModuleItem(held)
    if isinstance(held, Optimizer):
        return _optimizer_item(name, held, state)
    if isinstance(held, PerRank):
        return PerRankItem(held, name)
    if isinstance(held, Stateful):
        return StatefulItem(held)
    return PlainItem(state, name)


def _optimizer_item(name: str, optimizer: Optimizer, state: Mapping[str, Any]) -> Item:
    module = _module_of(name, optimizer, state)
    if module is not None:
        if has_flat_parameters(module):
            return FlatOptimizerItem(optimizer, module)
        return OptimizerItem(name, optimizer, parameter_names(module))
    modules = {n: held for n, held in state.items() if isinstance(held, nn.Module)}
    names = {p: f"{n}.{one}" for n, m in modules.items() for p, one in parameter_names(m).items()}
    return OptimizerItem(name, optimizer, names)


def _module_of(name: str, optimizer: Optimizer, state: Mapping[str, Any]) -> nn.Module | None:
    """Returns the module whose parameter names the optimizer uses: the only one, the one that the
    names identify, or the only one with parameters of the optimizer; None if it has parameters of
    several modules, whose names are then prefixed with those of the modules."""
    modules = {n: held for n, held in state.items() if isinstance(held, nn.Module)}
    if len(modules) == 1:
        return next(iter(modules.values()))
    if not modules:
        raise ValueError(
            f"optimizer {name!r} is saved by the names of its module: also add the module"
        )
    kind, _, named = name.partition(".")
    if kind == "optimizer" and (named or "model") in modules:
        named_module = modules[named or "model"]
        own = set(named_module.parameters())
        if all(p in own for group in optimizer.param_groups for p in group["params"]):
            return named_module
    owners = [
        m
        for m in modules.values()
        if (own := set(m.parameters()))
        and any(p in own for group in optimizer.param_groups for p in group["params"])
    ]
    if not owners:
        raise ValueError(
            f"optimizer {name!r} has parameters of none of the modules {sorted(modules)}: also add "
            "its module, or make it after the module is wrapped"
        )
    return owners[0] if len(owners) == 1 else None


def _step_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that say how a step is computed, which layout and devices decide again
    each time."""
    return {key: group[key] for key in WAYS if key in group}
