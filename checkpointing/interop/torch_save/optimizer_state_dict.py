"""Builds the `state_dict()` of a torch optimizer from its leaves in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpointing.interop.tensor_names import full_name, path_of

# prefixes of leaves, as checkpointing/state/optimizer_state.py names them
_STATE, _OPTIONS, _GROUP, _PLACE = "state.", "param_groups.", "group_of.", "place_of."
_CONTAINERS, _EMPTY, _CLASS = "containers.", "empty_group.", "class"
_OWN, _OWN_CONTAINERS = "own_state.", "own_containers."

Leaves = Mapping[str, Any]  # by full name below the item


@dataclass
class _Parameter:
    """What the leaves contain of one parameter."""

    group: int
    place: int
    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By key: leaves by the rest of their names, "" for the key itself."""
    options: dict[str, Any] = field(default_factory=dict)
    outlines: dict[str, Any] = field(default_factory=dict)


def is_optimizer(leaves: Leaves) -> bool:
    """Whether an item is an optimizer that `Checkpointer` has saved."""
    starts = (_STATE, _OPTIONS, _GROUP, _PLACE, _CONTAINERS, _EMPTY, _OWN, _OWN_CONTAINERS)
    has_options = any(name.startswith((_OPTIONS, _EMPTY)) for name in leaves)
    return has_options and all(name == _CLASS or name.startswith(starts) for name in leaves)


def state_dict(leaves: Leaves) -> dict[str, Any] | None:
    """Returns a state dict for `optimizer.load_state_dict`, with parameters by number. None if the
    leaves do not give the order of the parameters, as those of earlier versions and of several
    optimizers with one name (one on each stage of a pipeline)."""
    parameters = _parameters(leaves)
    empty = _empty_groups(leaves)
    groups: dict[int, list[_Parameter]] = {number: [] for number in empty}
    for one in sorted(parameters.values(), key=lambda one: (one.group, one.place)):
        groups.setdefault(one.group, []).append(one)
    if sorted(groups) != [*range(len(groups))] or any(
        [one.place for one in its] != [*range(len(its))] for its in groups.values()
    ):
        return None
    state: dict[int, dict[str, Any]] = {}
    own = _own_state(leaves)
    packed, first = [], 0
    for group in range(len(groups)):
        its = dict(enumerate(groups[group], first))
        options = its[first].options if its else empty[group]
        packed.append({**options, "params": [*its]})
        state |= {n: {key: _entry(one, key) for key in one.state} for n, one in its.items()}
        first += len(its)
    stepped = {number: its for number, its in state.items() if its}
    return {"state": {**stepped, **own}, "param_groups": packed}


def _parameters(leaves: Leaves) -> dict[str, _Parameter]:
    found = {
        name.removeprefix(_GROUP): _Parameter(group, leaves.get(_place(name), -1))
        for name, group in leaves.items()
        if name.startswith(_GROUP)
    }
    known = {path_of(name)[0]: one for name, one in found.items()}
    for name, leaf in leaves.items():
        for kind, parameter, key, below in _cut(name, known):
            if kind == _STATE:
                known[parameter].state.setdefault(key, {})[below] = leaf
            elif kind == _OPTIONS:
                known[parameter].options[key] = leaf
            elif kind == _CONTAINERS:
                known[parameter].outlines[key] = leaf
    return found


def _empty_groups(leaves: Leaves) -> dict[int, dict[str, Any]]:
    """Returns the options of groups without parameters, by number: one value, or leaves that
    include a tensor."""
    found: dict[int, dict[str, Any]] = {}
    for name, leaf in leaves.items():
        if name.startswith(_EMPTY):
            group, is_below, key = name.removeprefix(_EMPTY).partition("/")
            found.setdefault(int(group), {}).update({path_of(key)[0]: leaf} if is_below else leaf)
    return found


def _own_state(leaves: Leaves) -> dict[str, Any]:
    """Returns the state under string keys, which belongs to no parameter."""
    found: dict[str, dict[str, Any]] = {}
    outlines: dict[str, Any] = {}
    for name, leaf in leaves.items():
        top, _, below = name.partition("/")
        (text,) = path_of(top)
        if text.startswith(_OWN):
            found.setdefault(text.removeprefix(_OWN), {})[below] = leaf
        elif text.startswith(_OWN_CONTAINERS):
            outlines[text.removeprefix(_OWN_CONTAINERS)] = leaf
    return {
        key: its[""] if "" in its else _built(outlines[key], its, ()) for key, its in found.items()
    }


def _place(group_leaf: str) -> str:
    return f"{_PLACE}{group_leaf.removeprefix(_GROUP)}"


def _cut(name: str, known: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yields (kind, parameter, key, rest) of a leaf that belongs to a parameter."""
    top, _, below = name.partition("/")
    (text,) = path_of(top)
    for kind in (_STATE, _OPTIONS, _CONTAINERS):
        if text.startswith(kind):
            parameter = rest = text.removeprefix(kind)
            while parameter and parameter not in known:  # the longest known prefix
                parameter = parameter.rpartition(".")[0]
            if parameter and (key := rest[len(parameter) + 1 :]):
                yield kind, parameter, key, below


def _entry(one: _Parameter, key: str) -> Any:
    leaves = one.state[key]
    return leaves[""] if "" in leaves else _built(one.outlines[key], leaves, ())


def _built(outline: Any, leaves: Mapping[str, Any], path: tuple[object, ...]) -> Any:
    kind, inner = outline
    if kind in ("tensor", "value"):
        return leaves[full_name(path)]
    made = {key: _built(child, leaves, (*path, key)) for key, child in inner}
    if kind == "dict":
        return made
    return tuple(made.values()) if kind == "tuple" else list(made.values())
