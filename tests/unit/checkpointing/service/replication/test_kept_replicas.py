"""What a service holds for ranks of other nodes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from checkpointing.errors import ServiceError
from checkpointing.service.replication.kept_replicas import (
    IncomingReplica,
    KeptReplicas,
    ReplicaOrigin,
)
from checkpointing.service.replication.replication_ring import RingNode
from checkpointing.service.snapshots import Generation, RankSnapshot, SlotBox, SnapshotLayout
from checkpointing.staging import host_memory
from checkpointing.staging.host_memory import FreeMemory

GENERATION = Generation("0a1b2c3d", 4)
ORIGIN = ReplicaOrigin(GENERATION, RingNode("a", "127.0.0.1", 4001, (0, 1)))
BYTES = 5000


@pytest.fixture
def replicas() -> Iterator[KeptReplicas]:
    made = KeptReplicas()
    yield made
    made.forget(made.origins())


def snapshot(step: int, rank: int = 0, size: int = BYTES) -> RankSnapshot:
    place = SlotBox("w", "uint8", (size,), (0,), (size,), 0)
    return RankSnapshot(GENERATION, rank, step, 0, SnapshotLayout(f"d{size}", (place,)))


def begin(replicas: KeptReplicas, step: int, rank: int = 0, size: int = BYTES) -> IncomingReplica:
    filling = replicas.begin(ORIGIN, snapshot(step, rank, size))
    assert filling is not None
    return filling


def bring(replicas: KeptReplicas, step: int, rank: int = 0, size: int = BYTES) -> None:
    filling = begin(replicas, step, rank, size)
    replicas.write(filling, 0, memoryview(bytes([step]) * size))
    replicas.end(filling)


def steps(replicas: KeptReplicas, rank: int = 0) -> list[int]:
    found: list[int] = next(one["steps"] for one in replicas.status() if one["rank"] == rank)
    return found


def test_the_one_before_stays_until_the_newer_is_whole(replicas: KeptReplicas) -> None:
    for step in (1, 2):
        for rank in (0, 1):
            bring(replicas, step, rank)
    filling = begin(replicas, 3)
    assert steps(replicas) == [2]
    replicas.abort(filling)
    assert steps(replicas) == [2]
    bring(replicas, 3)
    assert steps(replicas) == [2, 3]
    assert replicas.begin(ORIGIN, snapshot(3)) is None  # it is here


def test_a_step_that_all_ranks_have_is_not_given_for_one_that_only_some_have(
    replicas: KeptReplicas,
) -> None:
    for step, ranks in ((1, (0, 1)), (2, (0,)), (3, (0,))):
        for rank in ranks:
            bring(replicas, step, rank)
    assert steps(replicas) == [1, 3]


def test_what_is_read_is_what_was_brought_and_stays_meanwhile(replicas: KeptReplicas) -> None:
    bring(replicas, 7)
    bring(replicas, 8)
    with replicas.reading(GENERATION, 0, 7) as found:
        assert found is not None
        with pytest.raises(ServiceError, match="being read"):
            begin(replicas, 9)
        assert np.all(found[1][:BYTES] == 7)
    bring(replicas, 9)
    with replicas.reading(GENERATION, 0, 7) as found:
        assert found is None


def test_one_that_was_given_up_takes_no_more_bytes(replicas: KeptReplicas) -> None:
    old = begin(replicas, 1)
    begin(replicas, 2)
    with pytest.raises(ServiceError, match="given up"):
        replicas.write(old, 0, memoryview(b"x"))
    with pytest.raises(ServiceError, match="given up"):
        replicas.end(old)


def test_bytes_that_were_not_said_are_refused(replicas: KeptReplicas) -> None:
    filling = begin(replicas, 1)
    with pytest.raises(ServiceError, match="more bytes than it stated"):
        replicas.write(filling, BYTES - 1, memoryview(b"xy"))


def test_ranks_of_other_nodes_are_refused(replicas: KeptReplicas) -> None:
    with pytest.raises(ServiceError, match="rank 3 is not a rank of node a"):
        replicas.begin(ORIGIN, snapshot(1, rank=3))


def test_without_room_nothing_is_taken(
    replicas: KeptReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        host_memory, "available", lambda: FreeMemory(16383, "the machine has 1.0 GiB")
    )
    with pytest.raises(
        ServiceError, match=r"not enough memory for replicas of rank 0 of node a: .*1\.0 GiB"
    ):
        replicas.begin(ORIGIN, snapshot(1))
    assert (replicas.refused, replicas.status()) == (1, [])
    monkeypatch.setattr(
        host_memory, "available", lambda: FreeMemory(16384, "the machine has 1.0 GiB")
    )
    bring(replicas, 1)
    assert [one["bytes"] for one in replicas.status()] == [16384]


def test_a_larger_layout_gets_new_memory(replicas: KeptReplicas) -> None:
    bring(replicas, 1)
    bring(replicas, 2, size=3 * BYTES)
    assert steps(replicas) == [2]


def test_what_is_durable_is_not_taken_over(replicas: KeptReplicas) -> None:
    for step in (1, 2):
        for rank in (0, 1):
            bring(replicas, step, rank)
    replicas.settled(GENERATION, 1)
    taken = replicas.take(ORIGIN)
    assert [[one.step for one in snapshots] for snapshots, _ in taken] == [[2], [2]]
    assert replicas.origins() == set()
    for snapshots, arena_layout in taken:
        arena_layout.check_holds(snapshots[0])
        assert np.all(arena_layout.view(snapshots[0].slot)[:BYTES] == 2)
        arena_layout.arena.close()
