"""Who keeps replicas for whom, and which of them gives way."""

from __future__ import annotations

from typing import Any

import pytest

from checkpointing.errors import ServiceError
from checkpointing.service.replication.replication_ring import (
    ReplicationRing,
    RingNode,
    choose_slot,
    dump_ring,
    load_ring,
    pace,
)
from checkpointing.service.snapshots import Generation

KEY = bytes(range(32))
NODES = (RingNode("a", "10.0.0.1", 4001, (0, 2)), RingNode("b", "10.0.0.2", 4002, (1, 3)))


def ring(me: int = 0) -> ReplicationRing:
    return ReplicationRing(Generation("0a1b2c3d", 4), NODES, me, KEY)


def test_a_ring_comes_back_from_its_message() -> None:
    assert load_ring(dump_ring(ring(1))) == ring(1)


@pytest.mark.parametrize(
    "changes",
    [
        {"me": 2},
        {"me": True},
        {"key": "00"},
        {"key": "x" * 64},
        {"nodes": []},
        {"nodes": [{**dump_ring(ring())["nodes"][0], "port": 0}, dump_ring(ring())["nodes"][1]]},
        {"nodes": dump_ring(ring())["nodes"][:1]},
        {"nodes": [{"name": "a"}]},
        {"nodes": 7},
    ],
)
def test_no_ring_is_refused_without_its_key(changes: dict[str, Any]) -> None:
    with pytest.raises(ServiceError, match="not a valid ring of nodes") as caught:
        load_ring({**dump_ring(ring()), **changes})
    assert KEY.hex() not in repr(caught.value)


def test_each_node_has_a_next_one_but_a_single_one() -> None:
    assert [ring(me).next for me in (0, 1)] == [1, 0]
    assert ReplicationRing(Generation("0a1b2c3d", 2), NODES[:1], 0, KEY).next is None


@pytest.mark.parametrize(
    ("steps", "complete", "slot"),
    [
        ((None, None), None, 0),
        ((4, None), 4, 1),
        ((None, 4), None, 0),
        ((4, 5), 5, 0),
        ((5, 4), 5, 1),
        ((4, 5), 4, 1),  # the other ranks of that node have not got 5
        ((4, 5), None, 0),
    ],
)
def test_the_newest_step_that_is_complete_stays(
    steps: tuple[int | None, int | None], complete: int | None, slot: int
) -> None:
    assert choose_slot(steps, complete) == slot


def test_a_low_rate_sends_little_at_a_time() -> None:
    assert pace(None, 1 << 22) == 1 << 22
    assert pace(1e9, 1 << 22) == 1 << 22
    assert pace(1e6, 1 << 22) == 1_000_000
    assert pace(1.0, 1 << 22) == 64 << 10
