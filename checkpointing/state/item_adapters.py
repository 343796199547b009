"""Adapters for the entries of the user's `state`: how each kind of object gives its tree and takes
it back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast, runtime_checkable

from torch import nn
from torch.optim import Optimizer

from checkpointing.distributed_classes import has_flat_parameters, is_dtensor
from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.torch_dtypes import dtype_name
from checkpointing.format.values.branch_kinds import RECORD, record
from checkpointing.format.values.json_values import Json, decode
from checkpointing.state.lazy_state import conflicts, fitted
from checkpointing.state.optimizer_state import (
    CLASS,
    GROUP,
    OPTIONS,
    OWN,
    PLACE,
    STATE,
    WAYS,
    OptimizerItem,
    buffer_names,
    class_of,
    cut_known,
    parameter_names,
)
from checkpointing.state.per_rank import PerRank, blank, rank_and_world
from checkpointing.state.structure_comparison import Inventory, StateRequirements
from checkpointing.state.tree import (
    Branch,
    Leaves,
    flatten,
    join,
    unflatten,
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


@runtime_checkable
class OptimizerHolder(Protocol):
    """A stateful object that is not an optimizer but holds the state of some."""

    stepped_by: Sequence[Optimizer]


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


class ModuleItem(_SameTree):
    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def to_save(self) -> Any:
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        return get_model_state_dict(self._module)

    def buffers(self) -> Mapping[str, bool]:
        """Names of the buffers, which may differ among replicas of the module (the first rank's are
        the model's, which DistributedDataParallel gives to all others), and whether each replica
        does have its own, such as the running moments of a BatchNorm."""
        return buffer_names(self._module)

    def load(self, tree: Any) -> None:
        from torch.distributed.checkpoint.state_dict import set_model_state_dict

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
    items = _items(state)
    if RECORD in state:
        raise TypeError(f"cannot save {RECORD!r}: hpckit reserves the name; rename it")
    leaves = Leaves()
    for name, item in items.items():
        _flatten(item, item.to_save(), join("", name)[1:], leaves)
    _add_record(leaves)
    return leaves


def _add_record(leaves: Leaves) -> None:
    """Add the record of the kinds of branches where the names do not show them."""
    if leaves.containers:
        leaves.values |= record(leaves.containers, {*leaves.tensors, *leaves.values})
        leaves.unlike.add(RECORD)  # it differs on ranks with other parts of the state


def _flatten(item: Item, tree: Any, path: str, into: Leaves) -> None:
    mine = Leaves()
    flatten(tree, path, mine)
    if isinstance(item, OptimizerItem | FlatOptimizerItem):
        starts = (join(path, STATE), join(path, OWN))
        into.stepped |= {name for name in mine.tensors if name.startswith(starts)}
        into.alike |= mine.tensors.keys()
        places = join(path, PLACE)
        into.unlike |= {name for name in mine.values if name.startswith(places)}
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
    return held + [
        one
        for item in state.values()
        if isinstance(item, OptimizerHolder)
        for one in item.stepped_by
    ]


class LoadTarget:
    """A state as the destination of a load. `expect` or `form` sets what is loaded; nothing in the
    state changes before `finish`."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.leaves = Leaves()
        self._items = {join("", name)[1:]: item for name, item in _items(state).items()}
        self._trees: dict[str, Any] = {}
        self._problems: list[str] = []
        self._values: dict[str, Any] = {}  # values that were read

    def expect(self) -> None:
        """Expect a state like this one after at least one step of training."""
        self._make({path: item.expected() for path, item in self._items.items()})

    def form(self, inventory: Inventory) -> None:
        """Expect the content of a checkpoint.

        Raises:
            FormatError: it has a value of a kind that this version does not know, or of a class
                that the program has not registered.
        """
        trees = {path: item.to_load(inventory.below(path)) for path, item in self._items.items()}
        for path, item in self._items.items():
            if isinstance(item, StatefulItem | PlainItem | PerRankItem):
                trees[path] = fitted(trees[path], path, inventory)
        self._make(trees)
        self._problems = [one for item in self._items.values() for one in item.problems]
        self._problems += conflicts(self.leaves.containers, inventory)
        self.read(inventory.values)

    def read(self, values: Mapping[str, Json]) -> None:
        """Decode the wanted values while nothing has changed yet; raises as `form`."""
        self._values = {}
        for name in self.leaves.values.keys() & values.keys() - {RECORD}:
            try:
                self._values[name] = decode(values[name])
            except (DamagedError, FormatError) as error:
                raise type(error)(f"{name!r}: {error}") from error

    def wants(self) -> StateRequirements:
        specs = {n: (tuple(t.shape), dtype_name(t.dtype)) for n, t in self.leaves.tensors.items()}
        covered = tuple(
            join(path, "rank")
            for path, item in self._items.items()
            if isinstance(item, PerRankItem)
        )
        values = frozenset(self.leaves.values) - {RECORD}
        return StateRequirements(specs, values, tuple(self._problems), covered)

    def elsewhere(self) -> set[str]:
        """Returns the names of the tensors that `choose` needs, which are not live ones."""
        paths = tuple(
            f"{path}/"
            for path, item in self._items.items()
            if isinstance(item, PerRankItem) and item.is_elsewhere
        )
        return {name for name in self.leaves.tensors if name.startswith(paths)} if paths else set()

    def choose(self, inventory: Inventory) -> None:
        """Let the program choose what this rank gets from the states of all ranks of another world
        size. Called once the tensors of `elsewhere` hold the loaded bytes, and before any live
        tensor does."""
        values = self._found(inventory)
        for path, item in self._items.items():
            if isinstance(item, PerRankItem) and item.is_elsewhere:
                item.choose(unflatten(self._trees[path], path, values))

    def finish(self, inventory: Inventory) -> None:
        """Give every entry its tree, once the wanted tensors hold the loaded bytes."""
        values = self._found(inventory)
        for path, item in self._items.items():
            item.load(unflatten(self._trees[path], path, values))

    def _found(self, inventory: Inventory) -> dict[str, Any]:
        # values that the checkpoint does not have, where that is allowed, keep their content
        unread = self.leaves.values.keys() - self._values.keys() - {RECORD}
        found = {**self.leaves.values, **inventory.values}
        return self._values | {name: decode(found[name]) for name in unread}

    def here(self, inventory: Inventory, rename: Callable[[str], str]) -> dict[str, str]:
        """Returns the names of the state for the names of the checkpoint that they are loaded
        from."""
        self.form(Inventory({}, {}))
        exact = {rename(n): n for n in (*self.leaves.tensors, *self.leaves.values)}
        for path, item in self._items.items():
            if isinstance(item, OptimizerItem):
                whole = join(path, CLASS)  # exists even without parameters
                exact[rename(whole)] = whole
                starts = {rename(join(path, one)): join(path, one) for one in item.beginnings()}
                for name in (*inventory.tensors, *inventory.values):
                    start, rest = cut_known(name, starts)
                    if start:
                        exact[name] = starts[start] + rest
        return exact

    def _make(self, trees: dict[str, Any]) -> None:
        self.leaves, self._trees, self._problems = Leaves(), trees, []
        for path, tree in trees.items():
            _flatten(self._items[path], tree, path, self.leaves)
        _add_record(self.leaves)


def _items(state: Mapping[str, Any]) -> dict[str, Item]:
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
    """Returns the module whose parameter names the optimizer uses: the only one, or the one that
    the names identify; None if it has parameters of several modules, whose names are then prefixed
    with those of the modules."""
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
    owners = {
        n
        for n, m in modules.items()
        if (own := set(m.parameters()))
        and any(p in own for group in optimizer.param_groups for p in group["params"])
    }
    if len(owners) > 1:
        return None
    raise ValueError(
        f"cannot find out to which of the modules {sorted(modules)} optimizer {name!r} belongs: "
        "name it 'optimizer.<name of the module>' ('optimizer' belongs to 'model')"
    )


def _step_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that say how a step is computed, which layout and devices decide again
    each time."""
    return {key: group[key] for key in WAYS if key in group}
