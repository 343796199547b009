import json
import math
from collections import Counter, OrderedDict, namedtuple
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing import FormatError
from checkpointing.values import decode, encode

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
)
KEYS = st.text(max_size=3) | st.sampled_from(["$float", "$x"]) | st.integers() | st.none()
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=10,
)


def same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)  # repr tells 1 from 1.0 and True, -0.0 from 0.0, tuple from list


@given(TREES)
def test_values_come_back_as_they_were(tree: Any) -> None:
    text = json.dumps(encode(tree, "x"), allow_nan=False)
    assert same(decode(json.loads(text)), tree)


def test_what_json_cannot_say() -> None:
    values = [math.inf, -math.inf, (1, (2,)), {1: "a", "1": "b"}, {"$float": "nan"}, -0.0]
    values += [Counter({3: 1}), OrderedDict(b=1, a=2), {}, [], ()]
    assert same(decode(json.loads(json.dumps(encode(values, "x"), allow_nan=False))), values)
    assert math.isnan(decode(encode(math.nan, "x")))
    assert encode([1.0, math.inf], "x") == [1.0, {"$float": "inf"}]
    assert encode({"a": 1.0, "b": math.nan}, "x") == {"a": 1.0, "b": {"$float": "nan"}}


Point = namedtuple("Point", "x y")
Color = IntEnum("Color", "RED")


@pytest.mark.parametrize(
    "value",
    [b"x", {1, 2}, object(), np.float64(1.0), np.zeros(2), Point(1, 2), Color.RED, 1j, print],
)
def test_other_things_are_refused_with_their_place(value: object) -> None:
    with pytest.raises(TypeError, match=r"at 'loader/a/1': a state holds"):
        encode({"a": [0, value]}, "loader")


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


@pytest.mark.parametrize("value", [{"$set": [1]}, {"$float": "1"}, {"$tuple": 3}])
def test_unknown_tags_are_refused(value: Any) -> None:
    with pytest.raises(FormatError, match="unknown kind of value"):
        decode(value)
