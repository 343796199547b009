"""Places of lists are told from keys of dicts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing import SaveError
from checkpointing.format.values.branch_kinds import RECORD
from checkpointing.format.values.json_values import Json
from checkpointing.interop.list_branches import Keys, guess, keys, lists_in, record
from checkpointing.interop.tensor_names import full_name

KEYS = st.sampled_from(["0", "1", "2", "00", "state", "param_groups", "a/0", "~", ""])
TREES = st.recursive(
    st.none(),
    lambda trees: st.lists(trees, max_size=3) | st.dictionaries(KEYS, trees, max_size=3),
    max_leaves=12,
)


def leaves(tree: Any, path: Keys = ()) -> list[Keys]:
    if tree is None:
        return [path]
    children = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [leaf for key, child in children for leaf in leaves(child, (*path, key))]


@given(st.dictionaries(KEYS.filter(bool), TREES, max_size=4))
def test_what_is_recorded_comes_back(tree: dict[str, Any]) -> None:
    paths = leaves(tree)
    names = [full_name(path) for path in paths]
    lists = lists_in(names, record(paths))
    assert [keys(name, lists) for name in names] == paths


def test_names_tell_most() -> None:
    names = [
        "l/1",
        "l/0",
        "d/1",
        "d/2",
        "o/state/0/m",
        "o/param_groups/0",
        "0/x",
        "1",
        "e/0",
        "e/x",
    ]
    assert guess(names) == {"l", "o/param_groups"}
    assert record([("l", 0), ("l", 1), ("d", "1")]) == {}
    assert record([("l", "0")]) == {RECORD: {"lists": [], "dicts": ["l"]}}
    assert record([("l", 1)]) == {RECORD: {"lists": ["l"], "dicts": []}}
    with pytest.raises(SaveError, match="rename it"):
        record([(RECORD,)])


def test_optimizers_say_what_their_containers_are() -> None:
    outline: Json = {"$tuple": ["dict", [{"$tuple": ["0", {"$tuple": ["list", []]}]}]]}
    names = ["o/state.w.f/0/0", "o/state.w.f/0/1"]
    assert guess(names) == {"o/state.w.f", "o/state.w.f/0"}
    assert lists_in(names, {"o/containers.w.f": outline}) == {"o/state.w.f/0"}


def test_an_item_without_its_name_is_a_dict() -> None:
    assert keys("l/0/1", {"l", "l/0"}) == ("l", 0, 1)
    assert keys("l/0/1", {"l", "l/0"}, ["l"]) == ("0", 1)
    assert keys("l", {"l"}, ["l"]) == ("l",)
