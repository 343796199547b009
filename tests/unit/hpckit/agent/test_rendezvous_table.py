"""Who asks for keys is answered when all are there, whatever the order of what others do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.agent.rendezvous_table import KeyValueTable

KEYS = st.sampled_from("abcd")
REQUESTS = st.one_of(
    st.builds(lambda key, value: {"do": "set", "key": key, "value": value}, KEYS, st.text("xy")),
    st.builds(lambda key: {"do": "get", "keys": key}, st.lists(KEYS, max_size=4)),
)


@given(st.lists(REQUESTS, max_size=30))
def test_a_get_is_answered_once_and_as_soon_as_all_keys_are_there(
    requests: list[dict[str, Any]],
) -> None:
    table = KeyValueTable()
    values: dict[str, str] = {}
    waiting: list[tuple[list[str], list[list[str]]]] = []  # keys, and the answers to them
    for request in requests:
        if request["do"] == "set":
            values[request["key"]] = request["value"]
            table.do(request, lambda: None)
        else:
            heard: list[list[str]] = []
            waiting.append((request["keys"], heard))
            table.do(request, lambda values, heard=heard: heard.append(values))
        for keys, heard in waiting:
            assert len(heard) == (set(keys) <= values.keys())
            if heard:
                assert len(heard[0]) == len(keys)
    found: list[list[str]] = []
    table.do({"do": "get", "keys": list(values)}, lambda values: found.append(values))
    assert found == [list(values.values())]


def test_numbers_are_added_to_what_is_there_and_wake_who_waits() -> None:
    table = KeyValueTable()
    heard: list[object] = []
    table.do({"do": "get", "keys": ["n"]}, lambda values: heard.append(values))
    table.do({"do": "add", "key": "n", "by": 3}, lambda value: heard.append(value))
    table.do({"do": "add", "key": "n", "by": -1}, lambda value: heard.append(value))
    assert heard == [["3"], "3", "2"]


def test_text_is_not_added_to() -> None:
    table = KeyValueTable()
    table.do({"do": "set", "key": "n", "value": "x"}, lambda: None)
    with pytest.raises(ValueError, match="invalid literal"):
        table.do({"do": "add", "key": "n", "by": 1}, lambda value: None)
