"""Collectives between real processes are timed, and a slow or wrong rank is named."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hpckit.trainer.collectives import collective_timing
from hpckit.trainer.collectives.collective_figures import (
    OPERATIONS,
    REPORT,
    CollectiveReport,
    findings,
)
from tests.forkserver import fork_server

NODES = 4
LATE_S = 1.0


def _rank(rank: int, local: int, port: int, output: Path, change: Callable[[int], None]) -> None:
    os.environ |= {
        **{"RANK": str(rank), "WORLD_SIZE": str(NODES), "LOCAL_WORLD_SIZE": str(local)},
        **{"LOCAL_RANK": str(rank % local), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        **{"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"},
    }
    change(rank)
    words = ["--output", str(output), "--sizes", "1", "4096", "--budget-s", "0.001"]
    collective_timing.main(words)


def measured(tmp_path: Path, local: int, change: Callable[[int], None]) -> CollectiveReport:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    output = tmp_path / "collectives.json"
    ranks = [
        fork_server().Process(target=_rank, args=(rank, local, store.port, output, change))
        for rank in range(NODES)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * NODES
    return REPORT.validate_json(output.read_bytes())


def _change_nothing(rank: int) -> None:
    pass


def _be_late(rank: int) -> None:
    """The exchanges of node 1 take longer, as over a bad cable."""
    if rank == 1:
        exchange = dist.batch_isend_irecv

        def late(works: Any) -> Any:
            time.sleep(LATE_S)
            return exchange(works)

        vars(dist)["batch_isend_irecv"] = late


def _be_wrong(rank: int) -> None:
    """Rank 2 flips a bit of each sum."""
    if rank == 2:
        reduce = dist.all_reduce

        def wrong(tensor: Any, *arguments: Any, **more: Any) -> Any:
            done = reduce(tensor, *arguments, **more)
            if more.get("group") is not None:
                tensor[-1] ^= 1
            return done

        vars(dist)["all_reduce"] = wrong


def test_all_groups_and_pairs_are_measured_and_right(tmp_path: Path) -> None:
    found = measured(tmp_path, local=2, change=_change_nothing)
    assert (len(found.nodes), found.ranks_per_node, found.backend) == (2, 2, "gloo")
    assert len(set(found.nodes)) == 2
    cases = [(one.operation, one.group, one.ranks) for one in found.collectives]
    groups = (("world", 4), ("node", 2), ("rail", 2))
    assert cases == [(name, *group) for group in groups for name in OPERATIONS for _ in range(2)]
    assert {one.size for one in found.collectives if one.group == "world"} == {16, 4096}
    assert not any(one.wrong_ranks for one in found.collectives)
    assert all(0 < one.seconds <= one.slowest_s for one in found.collectives)
    assert [one.kind for one in found.exchanges] == ["nodes", "ranks", "ranks"]


def test_a_slow_node_is_named(tmp_path: Path) -> None:
    found = measured(tmp_path, local=1, change=_be_late)
    assert {one.group for one in found.collectives} == {"world"}
    late = [one for one in found.exchanges if found.nodes[1] in (one.first, one.second)]
    assert len(late) == 3
    assert all(one.seconds > LATE_S for one in late)
    assert any(line.startswith(f"{found.nodes[1]} is slow") for line in findings(found))


def test_a_wrong_sum_is_named_with_its_rank(tmp_path: Path) -> None:
    found = measured(tmp_path, local=1, change=_be_wrong)
    wrong = {one.operation: one.wrong_ranks for one in found.collectives if one.wrong_ranks}
    assert wrong == {"all_reduce": (2,)}
    assert "WRONG result on rank 2" in findings(found)[0]
