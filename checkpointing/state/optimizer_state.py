"""Saves and restores an optimizer exactly, by the full names of its parameters.

A parameter that never stepped has no state, before and after a restore. State of a parameter that
was frozen later is kept. The tensors to load into are created from what the checkpoint has, not
from what a step of the optimizer would create; nothing of the optimizer changes before
`OptimizerItem.load`.

Leaves, below the name of the item:

    state.NAME.KEY          of a parameter: a tensor, a value, or a tree of both
    param_groups.NAME.KEY   an option of the parameter's group (as torch's own flat names are)
    group_of.NAME           the number of its group
    place_of.NAME           its place in the group, from 0
    containers.NAME.KEY     what a tree of tensors is made of, where `KEY` is one
    own_state.KEY           state under a string, of no parameter: the same, and
    own_containers.KEY      what it is made of, where it has tensors
    empty_group.NUMBER      the options of a group without parameters
    class                   the optimizer's, without its module
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from checkpointing.distributed_classes import is_dtensor
from checkpointing.format.torch_dtypes import dtype_name, torch_dtype
from checkpointing.format.values.branch_kinds import escaped, unescaped
from checkpointing.format.values.json_values import Json, decode, encode
from checkpointing.state.expected_optimizer_state import state_after_step
from checkpointing.state.optimizer_step import parameters_of, stepped_once
from checkpointing.state.structure_comparison import Inventory
from checkpointing.state.tree import (
    Branch,
    Leaves,
    check_tensor,
    flatten,
    is_branch,
    join,
    named_twice,
)
from checkpointing.state.unfilled_tensors import unfilled_like

if TYPE_CHECKING:
    from typing_extensions import TypeIs

logger = logging.getLogger("checkpointing")

STATE = "state."
OPTIONS, GROUP, _CONTAINERS, _EMPTY = "param_groups.", "group_of.", "containers.", "empty_group."
PLACE = "place_of."
_PLACES = (GROUP, PLACE)
_KINDS = (STATE, OPTIONS, GROUP, PLACE, _CONTAINERS)
"""Prefixes of the leaves that belong to one parameter."""
OWN, _OWN_CONTAINERS = "own_state.", "own_containers."
CLASS = "class"
WAYS = ("foreach", "fused", "capturable")
"""Options that say how a step is computed, which layout and devices decide again each time."""
_PROGRAM_OPTIONS = frozenset((*WAYS, "param_names"))
"""Options that keep the program's value. The names of a group's parameters are not saved either,
because they would be saved once for each parameter."""
_COUNT = "step"
"""The key under which torch's optimizers count steps: a scalar that is never sharded."""
_SHOWN = 4
_EXACT = 1 << 53  # integers up to this are exact as floats

Spec: TypeAlias = "tuple[tuple[int, ...], str]"  # global shape, dtype name


@dataclass
class _Stored:
    """What a checkpoint has of one optimizer, by parameter."""

    state: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """By parameter and key: the names below the key, or "" for the key itself."""
    options: dict[str, set[str]] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    """Leaves that belong to no parameter of this program."""


class _LeafNames:
    """The names of an optimizer's leaves under one path, each made once."""

    def __init__(self, path: str) -> None:
        self._start = join(path, "")
        self._made: dict[tuple[str, str, tuple[str, ...]], tuple[str, ...]] = {}
        self._of_groups: dict[int, tuple[list[str], tuple[str, ...], list[str]]] = {}

    def of(self, kind: str, name: str, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the names of these leaves of a parameter.

        Args:
            kind: prefix of all; "": each key is a prefix, and the whole rest is the name.
        """
        found = self._made.get((kind, name, keys))
        if found is None:
            below = [f"{kind}{name}.{key}" if kind else f"{key}{name}" for key in keys]
            found = tuple(self._start + escaped(one) for one in below)
            self._made[kind, name, keys] = found
        return found

    def of_group(self, index: int, parameters: list[str], keys: tuple[str, ...]) -> list[str]:
        """Returns, for each parameter of a group, the names of these options, of the group and of
        the place in it.

        Raises:
            TypeError: two of them are equal.
        """
        kept = self._of_groups.get(index)
        if kept is not None and kept[0] == parameters and kept[1] == keys:
            return kept[2]
        found: list[str] = []
        for name in parameters:
            found += (*self.of(OPTIONS, name, keys), *self.of("", name, _PLACES))
        if len(set(found)) < len(found):
            raise named_twice(next(leaf for leaf, times in Counter(found).items() if times > 1))
        self._of_groups[index] = parameters, keys, found
        return found


_NAMES: WeakKeyDictionary[Optimizer, dict[str, _LeafNames]] = WeakKeyDictionary()


def _kept_names(optimizer: Optimizer, path: str) -> _LeafNames:
    """Returns the names of the optimizer's leaves under `path`, which are kept as long as it is."""
    by_path = _NAMES.setdefault(optimizer, {})
    if path not in by_path:
        by_path[path] = _LeafNames(path)
    return by_path[path]


class OptimizerItem:
    """An entry of the state that is an optimizer whose parameters have known names."""

    def __init__(self, name: str, optimizer: Optimizer, names: Mapping[Tensor, str]) -> None:
        """
        Args:
            names: names of all parameters of the optimizer.

        Raises:
            ValueError: the optimizer has other parameters.
            TypeError: it has state under a key that is neither one of its parameters nor a string.
        """
        self._name, self._optimizer = name, optimizer
        parameters = list(parameters_of(optimizer))
        found = zip(parameters, map(names.get, parameters), strict=True)
        self._names = {one: its for one, its in found if its is not None}
        if len(self._names) < len(parameters):
            raise ValueError(f"optimizer {name!r} has parameters that its module does not have")
        keys: Collection[Any] = optimizer.state.keys()
        for key in () if self._names.keys() >= optimizer.state.keys() else keys:
            if type(key) is not str and key not in self._names:
                raise TypeError(
                    f"cannot save optimizer {name!r}: it has state for {type(key).__name__} "
                    f"{str(key)[:40]!r}, which is neither one of its parameters nor text; use text "
                    "as its key"
                )
        self._known: set[Tensor] = set()  # parameters of which the checkpoint has something
        self._is_known = False  # whether the checkpoint has anything of the optimizer
        self._made: dict[Tensor, dict[str, Any]] | None = None
        self._present: Branch | None = None  # the tree of the state that it had at `expected`
        # the state that `expected` has made; nothing uses its tensors before `load`
        self._to_come: Mapping[Tensor, Mapping[str, Any]] = {}
        self.unused: list[Tensor] = []
        """Tensors of the tree of the last `to_load` that nothing uses before `load`."""
        groups = [g for g in optimizer.param_groups if g.get("capturable") or g.get("fused")]
        # parameters whose step count is on their device
        self._counted_on_device = {p for group in groups for p in group["params"]}
        self.problems: list[str] = []
        """Why a checkpoint does not fit, besides missing and unexpected names."""

    def to_save(self) -> Branch:
        """Returns the tree of the optimizer's present state."""
        return Branch(self._tree(self._states(), self._own()))

    def leaves(self, path: str) -> Leaves:
        """Returns the leaves of `to_save()` under `path`, and which of them are `stepped` and
        `unlike`. An option is encoded once for all parameters of its group, and names are kept from
        call to call.

        Raises: as `flatten`.
        """
        found, start, names = Leaves(), join(path, ""), _kept_names(self._optimizer, path)
        for parameter, name in self._names.items():
            state = self._optimizer.state.get(parameter) or {}
            for leaf, (key, value) in zip(
                names.of(STATE, name, tuple(state)), state.items(), strict=True
            ):
                if type(value) is Tensor:  # almost all
                    check_tensor(value, leaf)
                    found.put(leaf, value)
                    continue
                flatten(value, leaf, found)
                if not isinstance(value, Tensor) and is_branch(value):
                    outline = self._outline(value)
                    flatten(outline, start + escaped(f"{_CONTAINERS}{name}.{key}"), found)
        flatten(Branch(self._own_tree(self._own())), path, found)
        found.stepped = set(found.tensors)
        for index, group in enumerate(self._optimizer.param_groups):
            self._put_options(index, group, path, names, found)
        found.put(start + CLASS, class_of(self._optimizer))
        return found

    def _put_options(
        self, index: int, group: Mapping[str, Any], path: str, names: _LeafNames, into: Leaves
    ) -> None:
        """Add the options of a group under the name of each of its parameters."""
        options = {key: group[key] for key in _options(group)}
        if not group["params"]:
            flatten(Branch({f"{_EMPTY}{index}": options}), path, into)
            return
        apart = {k: v for k, v in options.items() if isinstance(v, Tensor) or is_branch(v)}
        plain = tuple(key for key in options if key not in apart)
        first = self._names[group["params"][0]]
        leaves = names.of(OPTIONS, first, plain)
        encoded = [encode(options[key], at) for key, at in zip(plain, leaves, strict=True)]
        parameters = [self._names[one] for one in group["params"]]
        found = names.of_group(index, parameters, plain)
        if not into.values.keys().isdisjoint(found):
            raise named_twice(next(leaf for leaf in found if leaf in into.values))
        values: list[Json] = []
        for place in range(len(parameters)):
            values += (*encoded, index, place)
        into.values.update(zip(found, values, strict=True))
        each = len(plain) + len(_PLACES)
        into.unlike.update(found[each - 1 :: each])  # the places
        for name in parameters if apart else ():
            for leaf, key in zip(names.of(OPTIONS, name, tuple(apart)), apart, strict=True):
                flatten(apart[key], leaf, into)

    def expected(self) -> Branch:
        """Returns the tree that the optimizer will have once all parameters that require gradients
        have stepped; if it has stepped already, its present tree. The optimizer is not changed."""
        self._known, self._is_known = set(self._names), True
        if self._optimizer.state:
            self._present = self.to_save()
            return self._present
        if (known := state_after_step(self._optimizer)) is not None:
            self._to_come = known
            return Branch(self._tree(known, {}))
        with stepped_once(self._optimizer):
            made, own = self._states(), copy.deepcopy(self._own())
        return Branch(self._tree(made, own))

    def to_load(self, stored: Inventory) -> Branch:
        """Returns the tree to load into: what the checkpoint has of this program's parameters.

        Args:
            stored: what the checkpoint has of this optimizer, by the names of leaves that the
                module docstring lists.
        """
        self.unused = []
        if self._present is not None and self._is_as_stored(self._present, stored):
            self._known, self._is_known, self.problems = set(self._names), True, []
            return self._present
        found, tree = self._sorted(stored), dict[str, Any]()
        self._known, self.problems = set(), []
        self._is_known = bool(stored.tensors or stored.values)
        if not self._is_known:
            return Branch()
        tree |= self._own_places(stored)
        for group in self._optimizer.param_groups:
            here = _options(group)
            options = frozenset(here)
            for parameter in group["params"]:
                name = self._names[parameter]
                keys = found.options.get(name, set())
                if keys or name in found.state:
                    self._known.add(parameter)
                for key in found.state.get(name, {}):
                    tree[f"{STATE}{name}.{key}"] = self._place(parameter, name, key, stored)
                missing = not keys  # then all are missing, and are reported by name
                for key in [*here, *sorted(keys - options)]:
                    if missing or key in keys:
                        leaf = f"{OPTIONS}{name}.{key}"
                        tree[leaf] = self._option(parameter, group.get(key), leaf, stored)
        for leaf in stored.values:
            if leaf.startswith((GROUP, PLACE, _CONTAINERS)) and leaf not in found.others:
                tree[leaf] = None
        tree |= _empty_groups(stored)
        if CLASS in stored.values:
            tree[CLASS] = None
        self.problems = [*self._other_class(stored, found), *self._other_groups(stored, found)]
        return Branch(tree)

    def beginnings(self) -> list[str]:
        """Returns the prefixes of the names of all leaves, of parameters and others."""
        own = [OWN.rstrip("."), _OWN_CONTAINERS.rstrip(".")]
        return [*(f"{kind}{name}" for kind in _KINDS for name in self._names.values()), *own]

    def load(self, tree: Mapping[str, Any]) -> None:
        """Load the tree of `to_load` or `expected`, which now has the loaded content. Parameters of
        which the checkpoint has nothing are not changed."""
        self._to_come, self.unused = {}, []
        loaded: dict[str, dict[str, Any]] = {name: {} for name in self._names.values()}
        options: dict[str, dict[str, Any]] = {name: {} for name in self._names.values()}
        by_kind = {STATE: loaded, OPTIONS: options}
        for leaf, value in tree.items():
            kind = leaf[: leaf.find(".") + 1]
            if (into := by_kind.get(kind)) is not None:
                name, rest = cut_known(leaf[len(kind) :], into)
                into[name][rest[1:]] = value
        for parameter, name in self._names.items():  # in the same order on all ranks
            if parameter not in self._known:
                continue
            if loaded[name]:
                self._optimizer.state[parameter] = loaded[name]
            else:
                self._optimizer.state.pop(parameter, None)
        if self._is_known:
            self._take_own({k.removeprefix(OWN): v for k, v in tree.items() if k.startswith(OWN)})
        for index, group in enumerate(self._optimizer.param_groups):
            known = [self._names[p] for p in group["params"] if p in self._known]
            if known:
                self._take_options(index, group, options[known[0]])
            elif not group["params"]:
                self._take_options(index, group, tree.get(f"{_EMPTY}{index}") or {})

    def _take_own(self, loaded: Mapping[str, Any]) -> None:
        state: dict[Any, Any] = self._optimizer.state
        for key in self._own().keys() - loaded.keys():
            del state[key]
        state.update(loaded)

    def _states(self) -> dict[Tensor, dict[str, Any]]:
        """Returns the present state of its parameters."""
        return {p: dict(self._optimizer.state.get(p) or {}) for p in self._names}

    def _own(self) -> dict[str, Any]:
        """Returns the present state under string keys."""
        state: Mapping[Any, Any] = self._optimizer.state
        return {key: value for key, value in state.items() if type(key) is str}

    def _own_places(self, stored: Inventory) -> dict[str, Any]:
        """Returns the tree into which the state under string keys is loaded."""
        live, tree = self._own(), dict[str, Any]()
        for leaf in (*stored.tensors, *stored.values):
            first = leaf.partition("/")[0]
            if leaf.startswith(_OWN_CONTAINERS):
                tree[unescaped(leaf)] = None
            elif leaf.startswith(OWN) and unescaped(first) not in tree:
                key = unescaped(first).removeprefix(OWN)
                outline = stored.values.get(f"{_OWN_CONTAINERS}{first.removeprefix(OWN)}")
                make = partial(self._own_tensor, live.get(key))
                shape = ("value", None) if outline is None else decode(outline)
                tree[f"{OWN}{key}"] = _built(shape, first, make, stored)
        return tree

    def _own_tensor(self, live: object, spec: Spec, where: str | None) -> Tensor:
        if _fits(live, spec):
            return live
        shape, dtype = spec
        device = "cpu" if where == "cpu" else self._device
        return torch.zeros(shape, dtype=torch_dtype(dtype), device=device)

    @property
    def _device(self) -> torch.device:
        """Returns the device of its parameters."""
        return next((p.device for p in self._names), torch.device("cpu"))

    def _take_options(self, index: int, group: dict[str, Any], options: Mapping[str, Any]) -> None:
        for key, value in options.items():
            if key in _PROGRAM_OPTIONS:
                continue
            self._warn_changed(index, key, group, value)
            if isinstance(group.get(key), Tensor) and isinstance(value, int | float):
                group[key].fill_(value)
            else:
                group[key] = value

    def _warn_changed(self, index: int, key: str, group: Mapping[str, Any], value: Any) -> None:
        """Log that an option was restored from the checkpoint and differs from the program's;
        learning rates are left out, since every step of a schedule changes them."""
        if key not in group or isinstance(value, Tensor) or isinstance(group[key], Tensor):
            return
        if key not in ("lr", "initial_lr") and group[key] != value:
            logger.warning(
                "optimizer %r: %s of group %d is %s from the checkpoint, not %s from the program; "
                "set it after the restore to change it",
                *(self._name, key, index, value, group[key]),
            )

    def _tree(
        self, states: Mapping[Tensor, Mapping[str, Any]], own: Mapping[str, Any]
    ) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for parameter, name in self._names.items():
            for key, value in states[parameter].items():
                tree[f"{STATE}{name}.{key}"] = value
                if is_branch(value):
                    tree[f"{_CONTAINERS}{name}.{key}"] = self._outline(value)
        tree |= self._own_tree(own)
        for index, group in enumerate(self._optimizer.param_groups):
            options = {key: group[key] for key in _options(group)}
            for place, parameter in enumerate(group["params"]):
                name = self._names[parameter]
                for key, value in options.items():
                    tree[f"{OPTIONS}{name}.{key}"] = value
                tree[f"{GROUP}{name}"], tree[f"{PLACE}{name}"] = index, place
            if not group["params"]:
                tree[f"{_EMPTY}{index}"] = options
        tree[CLASS] = class_of(self._optimizer)
        return tree

    def _own_tree(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the tree of the state under string keys."""
        tree: dict[str, Any] = {}
        for key, value in own.items():
            tree[f"{OWN}{key}"] = value
            if isinstance(value, Tensor) or is_branch(value):
                tree[f"{_OWN_CONTAINERS}{key}"] = self._outline(value)
        return tree

    def _is_as_stored(self, tree: Branch, stored: Inventory) -> bool:
        """Whether the checkpoint has the leaves of this tree of the present state, none of them
        below another, and the same groups, whose parameters have the same options. Then `to_load`
        would make the same tree, and find no problem."""
        groups, specs = self._optimizer.param_groups, stored.tensors
        names = "".join(tree)
        if len(tree) != len(specs) + len(stored.values) or "/" in names or "~" in names:
            return False
        for leaf, value in tree.items():
            if isinstance(value, Tensor):
                is_there = specs.get(leaf) == (tuple(value.shape), dtype_name(value.dtype))
            elif leaf.startswith((GROUP, PLACE)) or leaf == CLASS:
                is_there = stored.values.get(leaf) == value
            else:
                is_there = leaf in stored.values
            if not is_there:
                return False
        return all(map(_options, groups)) and all(
            self._are_options_alike(group, stored.values) for group in groups
        )

    def _are_options_alike(self, group: Mapping[str, Any], stored: Mapping[str, Json]) -> bool:
        """Whether the checkpoint has all parameters of this group in one, with equal options."""
        names, options = [self._names[one] for one in group["params"]], _options(group)
        first = _looked_up(stored, names[0], options) if names else []
        return all(_looked_up(stored, name, options) == first for name in names[1:])

    def _sorted(self, stored: Inventory) -> _Stored:
        names = set(self._names.values())
        found = _Stored()
        for leaf in (*stored.tensors, *stored.values):
            if (kind := leaf[: leaf.find(".") + 1]) not in _KINDS:
                continue
            name, rest = cut_known(leaf[len(kind) :], names)
            key, _, below = rest[1:].partition("/")
            if not name or (rest == "") is not (kind in (GROUP, PLACE)):
                found.others.add(leaf)
            elif kind == STATE:
                found.state.setdefault(name, {}).setdefault(key, []).append(below)
            elif kind == OPTIONS:
                found.options.setdefault(name, set()).add(key)
        return found

    def _place(self, parameter: Tensor, name: str, key: str, stored: Inventory) -> Any:
        """Returns the tensor or tree into which a key of a parameter's state is loaded."""
        leaf = f"{STATE}{name}.{key}"
        live = (self._optimizer.state.get(parameter) or {}).get(key)
        if leaf in stored.values:
            return None  # values are decoded, not loaded into
        if leaf in stored.tensors:
            unused = self._unused_of(parameter, key) if live is None else None
            return self._tensor(parameter, key, stored.tensors[leaf], live, unused)
        outline = stored.values.get(f"{_CONTAINERS}{name}.{key}")
        below = [one for one in (*stored.tensors, *stored.values) if one.startswith(f"{leaf}/")]
        shape = decode(outline) if outline is not None else _guessed(leaf, below)

        def make(spec: Spec, _: str | None) -> Tensor:
            return self._tensor(parameter, key, spec, None)

        return _built(shape, leaf, make, stored)

    def _option(self, parameter: Tensor, value: object, leaf: str, stored: Inventory) -> Any:
        if leaf in stored.tensors and not isinstance(value, Tensor):
            shape, dtype = stored.tensors[leaf]
            return torch.zeros(shape, dtype=torch_dtype(dtype), device=parameter.device)
        return None if leaf in stored.values else value

    def _unused_of(self, parameter: Tensor, key: str) -> Tensor | None:
        """Returns the tensor of the parameter's shape that `expected` has made for this key."""
        made = self._to_come.get(parameter, {}).get(key)
        is_like = isinstance(made, Tensor) and made.dim() > 0 and made.shape == parameter.shape
        return made if is_like else None

    def _tensor(
        self, parameter: Tensor, key: str, spec: Spec, live: object, unused: object = None
    ) -> Tensor:
        """Returns a tensor of this global shape and dtype, sharded as the parameter is if it has
        its shape: the existing one or the unused one, if it fits, or else a new one."""
        if _fits(live, spec):
            return live
        shape, dtype = spec
        kind = torch_dtype(dtype)
        made = unused if _fits(unused, spec) else self._new_tensor(parameter, key, shape, kind)
        self.unused.append(made)
        return made

    def _new_tensor(
        self, parameter: Tensor, key: str, shape: tuple[int, ...], kind: torch.dtype
    ) -> Tensor:
        if key != _COUNT and shape == tuple(parameter.shape):
            return unfilled_like(parameter, kind)
        if key != _COUNT and is_dtensor(parameter):
            if self._made is None:
                self._made = self._make()
            made = self._made[parameter].get(key)
            if is_dtensor(made) and tuple(made.shape) == shape:
                return torch.zeros_like(made, dtype=kind)
        is_here = key != _COUNT or parameter in self._counted_on_device
        return torch.zeros(shape, dtype=kind, device=parameter.device if is_here else "cpu")

    def _make(self) -> dict[Tensor, dict[str, Any]]:
        """Returns the state that a step would create: only the optimizer knows how a tensor is
        sharded that is smaller than its sharded parameter."""
        with stepped_once(self._optimizer):
            return self._states()

    def _outline(self, value: Any) -> Any:
        """Returns the structure of a tree of tensors and values as a plain value. For a tensor it
        has the device, if that is not the parameters' device.

        Raises:
            TypeError: there are tensors in an object of another class.
        """
        if isinstance(value, Tensor):
            is_apart = value.device.type == "cpu" != self._device.type
            return ("tensor", "cpu" if is_apart else None)
        if not is_branch(value):
            return ("value", None)
        if isinstance(value, dict):
            return ("dict", [(key, self._outline(child)) for key, child in value.items()])
        if type(value) not in (list, tuple):
            raise TypeError(
                f"cannot save optimizer {self._name!r}: its state has tensors in an object of "
                f"class {type(value).__qualname__}; keep them in a dict, list or tuple"
            )
        kind = "tuple" if type(value) is tuple else "list"
        return (kind, [(key, self._outline(child)) for key, child in enumerate(value)])

    def _other_class(self, stored: Inventory, found: _Stored) -> Iterator[str]:
        mine = class_of(self._optimizer)
        theirs = stored.values.get(CLASS)
        if theirs is not None:
            if theirs != mine:
                yield f"optimizer {self._name!r} was saved as {theirs}, but is {mine} here"
            return
        saved = set().union(*found.options.values()) - {*_PROGRAM_OPTIONS, "initial_lr"}
        here = {key for group in self._optimizer.param_groups for key in _options(group)}
        here -= {*_PROGRAM_OPTIONS, "initial_lr"}
        if saved - here and here - saved:
            what = ", ".join(sorted(saved - here)[:_SHOWN])
            yield (
                f"optimizer {self._name!r} was saved as another kind, with {what}; here it is "
                f"{mine}"
            )

    def _other_groups(self, stored: Inventory, found: _Stored) -> Iterator[str]:
        """Yields groups that were split or merged, so that parameters would silently take the
        learning rate or weight decay of others. Other differences in the division are allowed."""
        here: dict[int, list[str]] = {}
        for index, group in enumerate(self._optimizer.param_groups):
            names = [self._names[p] for p in group["params"]]
            here[index] = [name for name in names if name in found.options]
        there = {n: self._saved_group(stored, n, found) for n in chain(*here.values())}
        merged = [
            names
            for names in here.values()
            if not self._are_alike(stored, names, found)
            and len({self._saved_options(stored, n, found) for n in names}) > 1
        ]
        together: dict[object, list[int]] = {}  # groups of the program, by a group that was saved
        for index, names in here.items():
            for saved in {there[n] for n in names}:
                together.setdefault(saved, []).append(index)
        split = [
            here[first] + here[other]
            for first, *others in together.values()
            for other in others
            if self._differ(first, other)
        ]
        for names in (*merged, *split)[:1]:
            shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
            yield (
                f"optimizer {self._name!r}: its groups have other parameters than in the "
                f"checkpoint, and their options differ (see {shown}); create the groups that were "
                "saved, or load with strict=False and set the options of the new ones"
            )

    def _differ(self, one: int, other: int) -> bool:
        """Whether the program has given two groups different options."""
        first, second = (self._optimizer.param_groups[index] for index in (one, other))
        keys = {*_options(first), *_options(second)} - _PROGRAM_OPTIONS
        return any(first.get(key) != second.get(key) for key in keys)

    def _saved_group(self, stored: Inventory, name: str, found: _Stored) -> object:
        """Returns the number of the group that a parameter was in, which belongs to the optimizer
        that had it: groups of one number may differ in two stages of a pipeline. For a checkpoint
        that does not say so, the group is found by its options."""
        leaf = f"{GROUP}{name}"
        if leaf in stored.values:
            return decode(stored.values[leaf])
        return self._saved_options(stored, name, found)

    def _are_alike(self, stored: Inventory, names: Sequence[str], found: _Stored) -> bool:
        """Whether these parameters surely have the same saved options, as almost all have. This is
        quicker than `_saved_options` of each."""
        if len(names) < 2:
            return True
        keys = found.options[names[0]]
        first = _looked_up(stored.values, names[0], keys)
        return all(
            found.options[name] == keys and _looked_up(stored.values, name, keys) == first
            for name in names[1:]
        )

    def _saved_options(self, stored: Inventory, name: str, found: _Stored) -> str:
        """Returns the options of a parameter's group, for comparison. The content of tensors is not
        known here, so an option that is a tensor is equal only within the same group."""
        prefix = f"{OPTIONS}{name}."
        shown: list[tuple[str, Json]] = []
        for key in sorted(found.options[name] - _PROGRAM_OPTIONS):
            leaf = f"{prefix}{key}"
            is_tensor = leaf in stored.tensors
            group = stored.values.get(f"{GROUP}{name}")
            shown.append((key, group if is_tensor else _as_floats(stored.values.get(leaf))))
        return repr(shown)


def _fits(value: object, spec: Spec) -> TypeIs[Tensor]:
    """Whether `value` is a tensor of this global shape and dtype."""
    return isinstance(value, Tensor) and (tuple(value.shape), dtype_name(value.dtype)) == spec


def _as_floats(value: Json) -> Json:
    """Returns `value` with a float for each integer that a float represents exactly: as options, 0
    and 0.0 are the same."""
    if isinstance(value, list):
        return [_as_floats(one) for one in value]
    if isinstance(value, dict):
        return {key: _as_floats(one) for key, one in value.items()}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _EXACT:
        return float(value)
    return value


def _options(group: Mapping[str, Any]) -> list[str]:
    return [key for key in group if key not in ("params", "param_names")]


def _empty_groups(stored: Inventory) -> dict[str, Any]:
    """Returns the tree into which the options of groups without parameters are loaded."""
    found: dict[str, Any] = {name: None for name in stored.values if name.startswith(_EMPTY)}
    for name in [*found, *(name for name in stored.tensors if name.startswith(_EMPTY))]:
        group, is_below, key = name.partition("/")
        if is_below:  # one of the options is a tensor, so each is a separate leaf
            found.pop(name, None)
            shape, dtype = stored.tensors.get(name, ((), ""))
            option = torch.zeros(shape, dtype=torch_dtype(dtype)) if dtype else None
            found.setdefault(group, {})[unescaped(key)] = option
    return found


def class_of(optimizer: Optimizer) -> str:
    """Returns the name of the optimizer's class under which its state is saved."""
    inner: Any = optimizer
    # accelerate wraps torch's optimizer
    while isinstance(getattr(inner, "optimizer", None), Optimizer):
        inner = inner.optimizer
    return type(inner).__qualname__


def _looked_up(values: Mapping[str, Json], name: str, keys: Iterable[str]) -> list[Json]:
    """Returns the saved group of a parameter, and the options, of which those that are tensors are
    None."""
    leaves = [f"{GROUP}{name}", *(f"{OPTIONS}{name}.{key}" for key in keys)]
    return [values.get(leaf) for leaf in leaves]


def cut_known(name: str, known: Collection[str]) -> tuple[str, str]:
    """Split a dotted name into its longest known prefix and the rest with its dot. Returns ("", "")
    if no prefix is known."""
    start = name
    while start:
        if start in known:
            return start, name[len(start) :]
        start = start.rpartition(".")[0]
    return "", ""


def _built(
    outline: Any, leaf: str, make: Callable[[Spec, str | None], Tensor], stored: Inventory
) -> Any:
    """Returns a tree to load into that has this outline."""
    kind, inner = outline
    if kind == "tensor":
        return make(stored.tensors[leaf], inner)
    if kind == "value":
        return None
    made = {key: _built(child, join(leaf, key), make, stored) for key, child in inner}
    if kind == "dict":
        return made
    return tuple(made.values()) if kind == "tuple" else list(made.values())


def _guessed(leaf: str, below: Iterable[str]) -> Any:
    """Guess an outline from the names, for a checkpoint from before outlines were saved."""
    tops = {one.removeprefix(f"{leaf}/").partition("/")[0] for one in below}
    children = []
    for top in sorted(tops, key=lambda t: (not t.isdigit(), int(t) if t.isdigit() else 0, t)):
        inner = [one for one in below if one.startswith(f"{leaf}/{top}/")]
        is_leaf = f"{leaf}/{top}" in set(below)
        key = int(top) if top.isdigit() else top
        children.append((key, ("tensor", None) if is_leaf else _guessed(f"{leaf}/{top}", inner)))
    return ("list" if all(top.isdigit() for top in tops) else "dict", children)
