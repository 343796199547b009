from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import nn

from checkpointing.state.tree import Branch, Leaves, flatten, unflatten, update_in_place
from tests.unit.checkpointing.plain import Undeclared

INT4: torch.dtype = vars(torch)["int4"]  # which mypy does not know


def leaves_of(tree: object) -> Leaves:
    leaves = Leaves()
    flatten(tree, "x", leaves)
    return leaves


def test_tensors_and_values_part() -> None:
    a, b = torch.zeros(2), torch.ones(3)
    tree = {"a": a, "n": 1, "deep": [{"b": b}, (2, "s")], "plain": {"k": [1]}, "s/~": b, 7: a}
    leaves = leaves_of(tree)
    assert leaves.tensors == {"x/a": a, "x/deep/0/b": b, "x/s~1~0": b, "x/7": a}
    assert leaves.values == {
        "x/n": 1,
        "x/deep/1": {"$tuple": [2, "s"]},
        "x/plain": {"k": [1]},
    }


def test_back_again_with_other_values() -> None:
    a = torch.zeros(2)
    tree = {"a": (a, 1), "v": {"k": 1}}
    rebuilt = unflatten(tree, "x", {"x/a/1": 5, "x/v": {"other": 2}})
    assert rebuilt["a"][0] is a
    assert rebuilt == {"a": (a, 5), "v": {"other": 2}}
    assert leaves_of(Branch(lr=1, m=2)).values == {"x/lr": 1, "x/m": 2}
    assert unflatten(Branch(lr=1), "x", {"x/lr": 3}) == {"lr": 3}


def test_update_keeps_the_containers() -> None:
    inner: dict[str, Any] = {"n": 1, "gone": 2}
    items = [1]
    live = {"inner": inner, "items": items, "kind": 1}
    assert update_in_place(live, {"inner": {"n": 5}, "items": [2, 3], "kind": "s"}) is live
    assert live == {"inner": {"n": 5}, "items": [2, 3], "kind": "s"}
    assert live["inner"] is inner
    assert live["items"] is items


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused() -> None:
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    with pytest.raises(TypeError, match="cannot save 'x': a nested tensor"):
        flatten(nested, "x", Leaves())


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (torch.zeros(2, device="meta"), "meta device"),
        (torch.eye(2).to_sparse(), "layout torch.sparse_coo"),
        (torch.zeros(2, dtype=torch.uint8).view(INT4), "dtype torch.int4"),
        (nn.Linear(1, 1), "torch.nn.modules.linear.Linear at 'x/a/0'"),
        (torch.zeros(2).as_subclass(type("Odd", (torch.Tensor,), {})), "of class Odd"),
        (object(), "builtins.object at 'x/a/0'"),
        ({torch.zeros(1).to_sparse()}, "layout torch.sparse_coo"),
    ],
)
def test_refused(leaf: object, message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        leaves_of({"a": [leaf], "b": torch.zeros(1)})
    assert "x/a/0" in str(caught.value)


def test_a_named_tuple_of_tensors_has_to_be_declared() -> None:
    with pytest.raises(TypeError, match=r"Undeclared at 'x/a': register the class: checkpointing"):
        leaves_of({"a": Undeclared(torch.zeros(1))})


def test_subclasses_of_containers_stay_what_they_are() -> None:
    tree = defaultdict(list, {"a": torch.zeros(1), "n": 1})
    found = unflatten(tree, "x", {"x/n": 5})
    assert type(found) is defaultdict
    assert found["new"] == []
    assert found["n"] == 5
    assert found["a"] is tree["a"]


def test_two_leaves_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="both named 'x/1'"):
        leaves_of({1: torch.zeros(1), "1": torch.zeros(1)})
