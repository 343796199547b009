"""Any state comes back as it was saved, or is refused while nothing has changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from checkpointing.errors import CheckpointError, FormatError, StructureError
from checkpointing.format.values.json_values import Json
from checkpointing.state.item_adapters import to_save
from checkpointing.state.load_target import LoadTarget
from checkpointing.state.per_rank import PerRank
from checkpointing.state.structure_comparison import Inventory
from checkpointing.state.tree import children, is_branch, rebuilt
from tests.effort import times
from tests.unit.checkpointing.plain import TREES, Frozen, Point, Progress, same
from tests.unit.checkpointing.state.state_transfer import carry, stored


class Held:
    """An object with a state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def made(tree: Any) -> dict[str, Any]:
    return {"a": copy.deepcopy(tree), "h": Held(copy.deepcopy(tree)), "p": PerRank(Held(tree))}


def content(state: dict[str, Any]) -> list[Any]:
    return [state["a"], state["h"].state, state["p"].held.state]


def other(tree: Any) -> Any:
    """A tree of the same form with other content."""
    if isinstance(tree, Tensor):
        return torch.ones_like(tree)
    if is_branch(tree):
        return rebuilt(tree, [(key, other(child)) for key, child in children(tree, "")])
    return {"another": 1}


@settings(max_examples=times(150), deadline=None)
@given(TREES)
def test_any_state_comes_back_as_it_was(tree: Any) -> None:
    live = made(other(tree))
    carry(made(tree), live)
    assert all(same(found, tree) for found in content(live))


@settings(max_examples=times(300), deadline=None)
@given(TREES, TREES)
def test_any_other_state_is_refused_before_anything_changes_or_comes_back(
    tree: Any, theirs: Any
) -> None:
    live, before = made(theirs), copy.deepcopy(theirs)
    try:
        carry(made(tree), live)
    except CheckpointError:
        assert all(same(found, before) for found in content(live))
    else:
        assert all(same(found, tree, ordered=False) for found in content(live))


T = torch.arange(3.0)
FULL: list[Any] = [T, [T, T], (T, [T]), {"b": T, "a": {"n": 1, "t": T}}, {0: T, 1: T}, Point(T, 2)]


@pytest.mark.parametrize("empty", [None, [], (), {}], ids=str)
@pytest.mark.parametrize("full", FULL, ids=lambda full: str(type(full).__name__))
@pytest.mark.parametrize("place", [lambda x: x, lambda x: {"x": x, "n": 1}, lambda x: [T, (x,)]])
def test_what_is_empty_in_one_and_has_tensors_in_the_other(
    empty: Any, full: Any, place: Callable[[Any], Any]
) -> None:
    """A program makes such state when it is first used."""
    for saved, live in ((place(full), place(empty)), (place(empty), place(full))):
        state = made(live)
        carry(made(saved), state)
        assert all(same(found, saved, ordered=False) for found in content(state))


T2 = torch.ones(2)


@pytest.mark.parametrize(
    ("saved", "live", "says"),
    [
        ([T, T], (T, T), "'{}' is a list in the checkpoint but a tuple in the state"),
        ([T, T], {0: T, 1: T}, "a list in the checkpoint but a dict whose keys are numbers"),
        (
            {"0": T},
            {0: T},
            "a dict whose keys are text in the checkpoint but a dict whose keys are numbers",
        ),
        ({"1": T, "x": T}, {1: T, "x": T}, "a dict whose keys are text in the checkpoint"),
        ({None: T}, {"None": T, "0": T}, "{}/0"),
        (Point(T), {"x": T, "y": 0, "0": 1}, "an object of class 'Point' in the checkpoint"),
        (Point(T), (T, 0), "{}/x"),
        (Point(T), Frozen(T), "{}/inner"),
        ({"t": 1.5}, {"t": T}, "{}/t"),
        ({"t": T}, {"t": 1.5}, "{}/t"),
        ({"t": None, "u": 1}, {"t": T}, "{}/t"),
        ({"t": T, "u": T}, {"t": None}, "{}/u"),
        ([T, T], [T], "{}/1"),
        ([T], [T, T], "{}/1"),
        ({"t": T2}, {"t": T}, r"{}/t: float32\[2\] in the checkpoint, float32\[3\] in the state"),
    ],
)
def test_another_form_is_refused_by_name_and_nothing_changes(
    saved: Any, live: Any, says: str
) -> None:
    for name, wrap in (("a", lambda x: x), ("h", Held)):
        state: dict[str, Any] = {"other": torch.zeros(2), name: wrap(copy.deepcopy(live))}
        with pytest.raises(StructureError, match=says.format(name)):
            carry({"other": torch.ones(2), name: wrap(saved)}, state)
        assert same(state[name].state if name == "h" else state[name], live)
        assert same(state["other"], torch.zeros(2))


def test_a_store_from_before_takes_any_form_with_the_same_names() -> None:
    """It does not say what its branches were."""
    inventory, _ = stored({"a": [T, T]})
    assert inventory.branches == {"a": "list"}
    old = Inventory(inventory.tensors, inventory.values)
    for live in ([T, T], (T, T), {0: T, 1: T}, {"0": T, "1": T}):
        target = LoadTarget({"a": live})
        target.form(old)
        assert target.wants().problems == ()
        assert set(target.leaves.tensors) == {"a/0", "a/1"}


def test_a_class_that_is_not_declared_is_refused_before_anything_changes() -> None:
    inventory, _ = stored({"a": {"t": T, "p": Progress(3)}, "b": Progress(1)})
    lost: Json = {"$record": ["Lost", [["epoch", 3]]]}
    for name in ("a/p", "b"):
        changed = replace(inventory, values={**inventory.values, name: lost})
        with pytest.raises(FormatError, match=f"'{name}': .* class 'Lost', which this program has"):
            LoadTarget({"a": {"t": T, "p": None}, "b": None}).form(changed)


def test_dataclasses_and_arrays_are_changed_in_place() -> None:
    live, array, inner = Progress(1, T.clone(), [T.clone()]), np.zeros(3), {"n": 1}
    state = {"p": live, "array": array, "value": Progress(0, inner)}
    value = state["value"]
    saved = {"p": Progress(5, T2, [T]), "array": np.ones(3), "value": Progress(2, {"n": 5})}
    saved["p"] = Progress(5, T + 1, [T])
    carry(saved, state)
    assert state["p"] is live
    assert live.epoch == 5
    assert torch.equal(live.best, T + 1)
    assert array.tolist() == [1, 1, 1]
    assert state["value"] is value
    assert inner == {"n": 5}


def test_keys_that_cannot_be_told_apart_are_refused_at_the_save() -> None:
    for wrong in ({1: T, "1": 5}, {1: 5, "1": T}, {1: {"x": T}, "1": 5}, {None: T, "None": T}):
        with pytest.raises(TypeError, match="two entries of the state are both named 'a/"):
            to_save({"a": wrong})
    assert to_save({"a": {1: 5, "1": 6}}).values["a"] == {"$dict": [[1, 5], ["1", 6]]}
    with pytest.raises(TypeError, match="hpckit reserves the name; rename it"):
        to_save({"dcp.containers": 1})


def test_what_branches_are_is_said_only_where_names_do_not_tell() -> None:
    assert stored({"a": {"x": T, "y": {"z": T}}, "n": [1, 2]})[0].branches == {}
    tree = {"l": [T], "t": (T,), 3: T, "d": {"7": T}, "m": {1: T, "2": T}, "p": Point(T)}
    assert stored({"a": tree})[0].branches == {
        "a": "numbers",
        "a/l": "list",
        "a/t": "tuple",
        "a/d": "dict",
        "a/m": {"keys": [1]},
        "a/p": {"class": "Point"},
    }
