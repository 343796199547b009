"""The snapshots of a node's ranks, with a stand-in for the exchange."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from hpckit.agent.hangs import snapshot_collection
from hpckit.agent.hangs.snapshot_collection import SnapshotCollector
from hpckit.hangs.own_snapshot import describe_worker
from hpckit.ipc.heartbeat_table import HeartbeatTable
from hpckit.ipc.snapshot_exchange import SnapshotExchange


class Answering:
    """An exchange with one worker, this process, which counts as overdue from a question on."""

    def __init__(self, since: int) -> None:
        self.asked = 0
        self.since, self.overdue = since, set[int]()

    def ask(self) -> int:
        self.asked += 1
        if self.asked == self.since:
            self.overdue.add(os.getpid())
        return self.asked

    def answer(self, rank: int, number: int) -> bytes:
        return describe_worker(number)


@pytest.mark.parametrize("since", [1, 2])
def test_a_rank_that_is_overdue_only_at_the_second_look_has_its_stacks_written_once(
    since: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_collection, "SECOND_LOOK_S", 0.0)
    table, _ = HeartbeatTable.create(1)
    (slot,) = table.slots()
    exchange = Answering(since)
    collector = SnapshotCollector(
        cast("SnapshotExchange", exchange), 0, tmp_path, lambda: [replace(slot, pid=os.getpid())]
    )
    (snapshot,), files = collector.collect(exchange.overdue, exchange.overdue)
    assert snapshot.is_overdue
    (path,) = files
    assert path.read_text().count(f"process {os.getpid()}\n") == 1
