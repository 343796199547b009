import enum
import functools
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from checkpointing import DamagedError, FormatError, register
from checkpointing.format.values.json_values import decode, encode, readable
from checkpointing.format.values.tagged_types import MAX_BYTES
from tests.effort import times
from tests.unit.checkpointing.plain import VALUES, Point, Progress, Undeclared, same


def text_of(value: Any) -> str:
    """As it is in a store: canonical JSON sorts keys."""
    return json.dumps(encode(value, "x"), allow_nan=False, sort_keys=True)


@settings(max_examples=times(250))
@given(VALUES)
def test_values_come_back_as_they_were(value: Any) -> None:
    found = decode(json.loads(text_of(value)))
    assert same(found, value)
    assert text_of(found) == text_of(value)


def test_what_json_cannot_say() -> None:
    values: list[Any] = [math.inf, -math.inf, (1, (2,)), {1: "a", "1": "b"}, {"$float": "nan"}]
    values += [Counter({3: 1}), OrderedDict(b=1, a=2), {}, [], (), {"b": 1, "a": 2}, -0.0]
    values += [10**4299, -(10**4299), complex(math.nan, -0.0), b"\0\xff", bytearray(b"x")]
    assert same(decode(json.loads(text_of(values))), values)
    assert encode([1.0, math.inf], "x") == [1.0, {"$float": "inf"}]
    assert encode({"a": 1.0, "b": math.nan}, "x") == {"a": 1.0, "b": {"$float": "nan"}}


def test_a_set_has_one_spelling_whatever_its_order_is() -> None:
    assert encode({"b", "a", 3}, "x") == {"$set": ["a", "b", 3]}


def test_keys_in_order_are_an_object_and_others_are_pairs() -> None:
    assert encode({"a": 1, "b": 2}, "x") == {"a": 1, "b": 2}
    assert encode({"b": 1, "a": 2}, "x") == {"$dict": [["b", 1], ["a", 2]]}
    shown = readable(encode([{"b": 1, "a": {"d": (1,), "c": 2}}, {1: 2}], "x"))
    assert shown == [{"b": 1, "a": {"d": {"$tuple": [1]}, "c": 2}}, {"$dict": [[1, 2]]}]


@pytest.mark.parametrize(
    "value",
    [
        {"b": 1, "a": 2},
        {"b": None, "a": "x"},
        {3: 0.5, 1: 1.5},
        {"b": 1, "a": 2.0},  # values of two kinds
        {"b": 1, 2: 2},  # names of two kinds
        {"b": 1 << 70, "a": math.inf},
        {"b": [1], "a": (2,)},
        {(1, 2): "x"},
        Counter(b=2, a=1),
        OrderedDict(b={"d": 1, "c": 2}, a=1),
    ],
)
def test_dicts_in_any_order(value: dict[Any, Any]) -> None:
    back = decode(json.loads(json.dumps(encode(value, "x"))))
    assert type(back) is type(value)
    assert list(back.items()) == list(value.items())


def test_an_array_comes_back_as_one_of_its_own() -> None:
    array = np.arange(6.0).reshape(2, 3).T
    found = decode(encode(array, "x"))
    assert found.flags.writeable
    array[0] = 9
    assert found.tolist() == [[0, 3], [1, 4], [2, 5]]


class Color(enum.IntEnum):
    RED = 1


class Flags(enum.Flag):
    ON = enum.auto()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "builtins.object at 'loader/a/1': a state holds"),
        (print, "builtin_function_or_method at 'loader/a/1': a state holds"),
        (deque([1]), "collections.deque at 'loader/a/1': a state holds"),
        (defaultdict(list), "collections.defaultdict at 'loader/a/1'"),
        (Path("x"), "PosixPath at 'loader/a/1'"),
        (Color.RED, "Color at 'loader/a/1': save its value"),
        (Flags.ON, "Flags at 'loader/a/1': save its value"),
        (
            Undeclared(1),
            "Undeclared at 'loader/a/1': register the class: checkpointing.reg",
        ),
        (np.zeros(2, object), "numpy array of dtype object at 'loader/a/1'"),
        (np.zeros(2, "i4,f8"), r"numpy array of dtype \[\('f0', '<i4'\).* at 'loader/a/1'"),
        (np.longdouble(1), "numpy scalar of dtype float128 at 'loader/a/1'"),
        (np.void(b"xx"), r"numpy scalar of dtype \|V2 at 'loader/a/1'"),
        (np.ma.zeros(2), "numpy.ma.MaskedArray at 'loader/a/1'"),
        (10**4300, "integer at 'loader/a/1': it has more than 4300 digits"),
        (
            bytes(MAX_BYTES + 1),
            "16777217 bytes at 'loader/a/1' as a value: at most 16777216 are allowed",
        ),
        (np.zeros(MAX_BYTES + 1, "i1"), "torch.from_numpy"),
        (torch.nn.Parameter(torch.zeros(1)), "it is of class Parameter"),
        (torch.zeros(1, device="meta"), "on meta"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_things_are_refused_with_their_place(value: object, says: str) -> None:
    with pytest.raises(TypeError, match=says) as caught:
        encode({"a": [0, value]}, "loader")
    assert "damage" not in str(caught.value)


def test_an_encoded_value_is_a_copy() -> None:
    value = {"a": [1]}
    encoded = encode(value, "x")
    value["a"].append(2)
    assert decode(encoded) == {"a": [1]}
    for flat in ([1, 2], [0.5], {"a": 1}, (None, "x")):
        copied = encode(flat, "x")
        assert copied is not flat
        assert decode(copied) is not copied
        assert same(decode(copied), flat)


@pytest.mark.parametrize(
    "value",
    [
        {"$new": [1]},
        {"$float": "1"},
        {"$tuple": 3},
        {"$set": 3},
        {"$array": ["|O", [1], ""]},
        {"$array": ["<f16", [1], "AAAAAAAAAAAAAAAAAAAAAA=="]},
        {"$scalar": ["<i4,<f4", "AAAAAAAAAAA="]},
        {"$dtype": "Tensor"},
        {"$dtype": "nn.Module"},
        {"$device": "nowhere"},
        {"$record": ["os.system", [["x", 1]]]},
        {"$record": ["Progress", [["epoch", 1]]]},
        {"$record": [["Progress"], []]},
    ],
    ids=str,
)
def test_what_is_not_known_here_is_refused(value: Any) -> None:
    with pytest.raises(FormatError):
        decode(value)


@pytest.mark.parametrize(
    "value",
    [
        {"$array": ["<f4", [2], "AAAA"]},
        {"$array": ["<f4", [-1, -1], "AAAAAA=="]},
        {"$array": ["<f4", [1 << 40], "AAAAAA=="]},
        {"$array": ["<f4", [1]]},
        {"$array": 3},
        {"$scalar": ["<f4", "AAAAAAAA"]},
        {"$tensor": ["float32", [3], "AAAAAA=="]},
        {"$bytes": "ä"},
        {"$bytes": 3},
        {"$complex": [1.0]},
        {"$complex": [1, 2]},
        {"$size": ["a"]},
        {"$set": [[1]]},
        {"$dict": [["a", 1], ["b"]]},
        {"$dict": [["a", 1], 3]},
        {"$dtype": 3},
        {"$record": [1, 2, 3]},
    ],
    ids=str,
)
def test_what_is_no_value_is_damage(value: Any) -> None:
    with pytest.raises(DamagedError):
        decode(value)


def test_an_undeclared_class_is_refused_with_its_name_and_what_to_do() -> None:
    with pytest.raises(
        FormatError, match=r"class 'Lost', which this program has not registered: ca"
    ):
        decode({"$record": ["Lost", [["x", 1]]]})
    with pytest.raises(
        FormatError, match=r"saved with the fields x, z, but here the class has x, y"
    ):
        decode({"$record": ["Point", [["x", 1], ["z", 1]]]})


def test_what_cannot_be_declared() -> None:
    for wrong in (int, Color, print, "Point"):
        with pytest.raises(TypeError, match="only named tuples and dataclasses"):
            register(wrong)  # type: ignore[type-var]

    @dataclass
    class Progress:  # another one than that of `plain`
        epoch: int

    with pytest.raises(ValueError, match=r"already registered as 'Progress': register .* name="):
        register(Progress, name="Progress")
    assert register(Progress, name="mine") is Progress
    with pytest.raises(ValueError, match="already registered as 'mine'"):
        register(Progress, name="yours")
    assert encode(Progress(3), "x") == {"$record": ["mine", [["epoch", 3]]]}


def test_a_class_that_is_defined_again_takes_the_place_of_the_first() -> None:
    def define() -> type:
        @dataclass
        class Again:
            x: int

        return register(Again)

    first = encode(define()(1), "x")
    second = define()
    assert type(decode(first)) is second


class Loud(NamedTuple("Loud", [("x", int)])):
    pass


def test_what_is_no_field_is_refused() -> None:
    progress = Progress(1)
    progress.extra = 2  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="Progress at 'x/0': its attribute 'extra' is not a field"):
        encode([progress], "x")
    lacking = Progress.__new__(Progress)
    with pytest.raises(TypeError, match="its field 'epoch' is not set"):
        encode(lacking, "x")
    loud = register(Loud)(1)
    loud.more = 3  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="its attribute 'more' is not a field"):
        encode(loud, "x")


@register
@dataclass
class Checked:
    x: int

    def __post_init__(self) -> None:
        assert self.x < 5

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.x


def test_no_code_of_the_class_runs_when_it_is_read() -> None:
    one = Checked(1)
    one.x = 7
    assert one.twice == 14
    found = decode(encode(one, "x"))
    assert type(found) is Checked
    assert vars(found) == {"x": 7}
    assert decode(encode(Point(1), "x")) == Point(1)
