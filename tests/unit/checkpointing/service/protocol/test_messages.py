from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from checkpointing.errors import ServiceError
from checkpointing.service.protocol.messages import (
    dump_layout,
    dump_snapshot,
    load_generation,
    load_layout,
    load_rank,
    load_snapshot,
)
from checkpointing.service.snapshots import Generation, RankSnapshot, SlotBox, SnapshotLayout

LAYOUT = SnapshotLayout(
    "digest",
    (
        SlotBox("model/w", "bfloat16", (8, 4), (2, 0), (6, 4), 0),
        SlotBox("model/scalar", "float64", (), (), (), 64),
        SlotBox("model/nothing", "int8", (0, 3), (0, 0), (0, 3), 128),
    ),
)
SNAPSHOT = RankSnapshot(
    Generation("0123abcd", 4, 7),
    rank=3,
    step=12,
    slot=1,
    layout=LAYOUT,
    values={"extra/x": {"$tuple": [1, "a", None]}},
    metrics={"loss": 0.5, "worst": math.inf},
    created=1.7e9,
    deadline_s=3.5,
)


def sent(message: dict[str, Any]) -> dict[str, Any]:
    """As it arrives."""
    received: dict[str, Any] = json.loads(json.dumps(message))
    return received


def test_layouts() -> None:
    assert load_layout(sent(dump_layout(LAYOUT))) == LAYOUT
    assert (LAYOUT.bytes, LAYOUT.end) == (48 + 8, 128)


@pytest.mark.parametrize(
    "snapshot",
    [SNAPSHOT, replace(SNAPSHOT, deadline_s=None), replace(SNAPSHOT, certified="bits")],
)
def test_snapshots(snapshot: RankSnapshot) -> None:
    plain = sent(dump_snapshot(snapshot))
    assert load_snapshot(plain, {"digest": LAYOUT}) == snapshot


def test_a_snapshot_of_a_layout_that_was_never_sent() -> None:
    with pytest.raises(ServiceError, match="digest"):
        load_snapshot(sent(dump_snapshot(SNAPSHOT)), {})


@pytest.mark.parametrize(
    "change",
    [
        {"rank": -1},
        {"rank": True},
        {"step": "1"},
        {"step": 10**11},
        {"slot": None},
        {"created": "now"},
        {"deadline_s": "soon"},
        {"certified": 1},
        {"generation": {"id": "no hex", "world_size": 1}},
        {"generation": 1},
        {"unknown": 1},
    ],
)
def test_what_is_no_snapshot(change: dict[str, Any]) -> None:
    with pytest.raises(ServiceError, match="is not a valid"):
        load_snapshot({**dump_snapshot(SNAPSHOT), **change}, {"digest": LAYOUT})


@pytest.mark.parametrize(
    "place",
    [
        ["w", "float99", [4], [0], [4], 0],
        ["w", "float32", [4], [0], [4], -1],
        ["w", "float32", [4], [1], [4], 0],
        ["w", "float32", [4], [0], [-4], 0],
        ["w", "float32", [4, 4], [0], [4], 0],
        ["w", "float32", [4], [0], [4.0], 0],
        [1, "float32", [4], [0], [4], 0],
        ["w", "float32", 4, 0, 4, 0],
        ["w"],
    ],
)
def test_what_is_no_layout(place: list[Any]) -> None:
    with pytest.raises(ServiceError, match="is not a valid layout"):
        load_layout({"digest": "d", "places": [place]})


@pytest.mark.parametrize(
    "plain",
    [
        {"id": "0123abcd"},
        {"id": "0123ABCD", "world_size": 1},
        {"id": "../01234", "world_size": 1},
        {"id": "0123abcd", "world_size": 0},
        {"id": "0123abcd", "world_size": 1.0},
        {"id": "0123abcd", "world_size": 1, "owner": "me"},
    ],
)
def test_what_is_no_generation(plain: dict[str, Any]) -> None:
    with pytest.raises(ServiceError, match="not a valid generation"):
        load_generation(plain)


@pytest.mark.parametrize(("rank", "ranks"), [(1, [0]), (4, [4]), (-1, [-1]), ("0", ["0"])])
def test_seats_that_there_are_not(rank: Any, ranks: list[Any]) -> None:
    generation = {"id": "0123abcd", "world_size": 4}
    with pytest.raises(ServiceError, match="do not fit together"):
        load_rank({"rank": rank, "ranks": ranks, "generation": generation})
    assert load_rank({"rank": 1, "ranks": [1, 2], "generation": generation}) == (
        1,
        frozenset([1, 2]),
        Generation("0123abcd", 4),
    )
