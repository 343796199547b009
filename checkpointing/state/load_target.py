"""A state as the destination of a load: what it wants of a checkpoint, and how it takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.torch_dtypes import dtype_name
from checkpointing.format.values.branch_kinds import RECORD
from checkpointing.format.values.json_values import SCALARS, Json, decode
from checkpointing.state.item_adapters import (
    ModuleItem,
    PerRankItem,
    PlainItem,
    StatefulItem,
    add_record,
    flatten_item,
    items_of,
)
from checkpointing.state.lazy_state import conflicts, fitted
from checkpointing.state.optimizer_state import CLASS, OptimizerItem, cut_known
from checkpointing.state.structure_comparison import Inventory, StateRequirements
from checkpointing.state.tree import Leaves, join, unflatten


class LoadTarget:
    """A state as the destination of a load. `expect` or `form` sets what is loaded; nothing in the
    state changes before `finish`."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.leaves = Leaves()
        self._items = {join("", name)[1:]: item for name, item in items_of(state).items()}
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
        if any(tree is not self._trees.get(path, self) for path, tree in trees.items()):
            self._make(trees)
        self._problems = [one for item in self._items.values() for one in item.problems]
        self._problems += conflicts(self.leaves.containers, inventory)
        self.read(inventory.values)

    def read(self, values: Mapping[str, Json]) -> None:
        """Decode the wanted values while nothing has changed yet; raises as `form`."""
        self._values = {}
        for name in self.leaves.values.keys() & values.keys() - {RECORD}:
            value = values[name]
            if type(value) in SCALARS:  # most of them, which are as they are encoded
                self._values[name] = value
                continue
            try:
                self._values[name] = decode(value)
            except (DamagedError, FormatError) as error:
                raise type(error)(f"{name!r}: {error}") from error

    @property
    def is_live(self) -> bool:
        """Whether the state surely has these leaves after `finish`, since it consists of modules
        and optimizers: what other objects have then is for them to say."""
        kinds = ModuleItem | OptimizerItem
        return all(isinstance(item, kinds) for item in self._items.values())

    def wants(self) -> StateRequirements:
        specs = {n: (tuple(t.shape), dtype_name(t.dtype)) for n, t in self.leaves.tensors.items()}
        covered = tuple(
            join(path, "rank")
            for path, item in self._items.items()
            if isinstance(item, PerRankItem)
        )
        values = frozenset(self.leaves.values) - {RECORD}
        return StateRequirements(specs, values, tuple(self._problems), covered)

    def unused(self) -> set[str]:
        """Returns the names of tensors that nothing uses before `finish`: they may be filled before
        everything is checked."""
        items = self._items.values()
        found = {id(t) for item in items if isinstance(item, OptimizerItem) for t in item.unused}
        return {name for name, tensor in self.leaves.tensors.items() if id(tensor) in found}

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
        tensor does, unless the state is fresh."""
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
            flatten_item(self._items[path], tree, path, self.leaves)
        add_record(self.leaves)
