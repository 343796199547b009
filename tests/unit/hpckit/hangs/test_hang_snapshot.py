"""Snapshots on their way from a rank to the supervisor."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.hangs.hang_snapshot import (
    MOST_FRAMES,
    MOST_GROUPS,
    RecordedCall,
    StackFrame,
    compressed,
    expanded,
    load_snapshot,
)
from tests.unit.hpckit.hangs.snapshots import elsewhere, group, waiting


@given(st.sets(st.integers(0, 5000)))
def test_ranks_are_the_same_after_compression(ranks: set[int]) -> None:
    assert expanded(compressed(ranks)) == ranks


@pytest.mark.parametrize(
    ("ranks", "ranges"),
    [
        ((), []),
        ((5,), [(5, 6, 1)]),
        (range(1024), [(0, 1024, 1)]),
        (range(3, 1024, 8), [(3, 1027, 8)]),
        ((0, 1, 2, 9), [(0, 3, 1), (9, 10, 1)]),
    ],
)
def test_members_of_a_group_take_a_few_numbers(ranks: Any, ranges: Any) -> None:
    assert compressed(ranks) == ranges


def test_ranges_of_a_stranger_are_bounded() -> None:
    assert expanded([(0, 10**12, 1), (4, 2, 1), (0, 5, 0), (1, 3, 1)]) == {1, 2}


def test_a_snapshot_is_the_same_on_the_other_side() -> None:
    records = (RecordedCall(6, "all_reduce", None), RecordedCall(7, "barrier", "float32[1]"))
    one = waiting(3, group(range(8), 7, records=records), group((3, 5), None, "x"), peer=5)
    one = replace(one, notes=("a note",), is_moving=True, has_advanced=True)
    assert load_snapshot(json.loads(json.dumps(one.record()))) == one
    assert load_snapshot(elsewhere(0).record()) == elsewhere(0)


def test_a_snapshot_is_bounded() -> None:
    frames = tuple(StackFrame("f" * 5000, n, "g" * 5000) for n in range(1000))
    groups = tuple(group(range(0, 3 * n, 3), n, f"{n}") for n in range(1, 500))
    record = replace(elsewhere(0, *groups), frames=frames, notes=("n" * 9999,) * 99).record()
    assert len(record["frames"]) == MOST_FRAMES
    assert len(record["groups"]) == MOST_GROUPS
    assert len(json.dumps(record)) < 40_000
    assert load_snapshot(record).frames[0].file == "f" * 200


@pytest.mark.parametrize(
    "change",
    [
        {"rank": None},
        {"frames": [["a", 1]]},
        {"state": "asleep"},
        {"call": {"operation": "x"}},
        {"groups": [{"name": "0"}]},
        {"notes": 3},
    ],
)
def test_what_is_no_snapshot_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        load_snapshot({**elsewhere(0).record(), **change})
    with pytest.raises(ValueError):
        load_snapshot({})
