"""Real processes measure themselves, and one that is slow or computes wrongly is named."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hpckit.trainer.deep_health import bandwidths, health_measuring
from hpckit.trainer.deep_health.health_figures import (
    HEALTH_REPORT,
    DeepHealthReport,
    health_problems,
)
from tests.forkserver import fork_server
from tests.unit.hpckit.trainer.deep_health.test_health_figures import LIMITS

RANKS = 4
LATE_S = 2.0
BUSY = replace(
    LIMITS,
    slow_matrix=0.5,
    slow_memory=0.0,
    slow_transfer=0.0,
    slow_link=0.0,
    slow_disk=0.0,
    slow_store=0.0,
)
"""Limits for products alone: a busy machine may slow any process somewhat."""


def _rank(rank: int, port: int, folder: Path, change: Callable[[int], None]) -> None:
    os.environ |= {
        **{"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": "1"},
        **{"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        **{"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"},
    }
    bandwidths.FILE_BYTES = bandwidths.OBJECT_BYTES = 1 << 20
    change(rank)
    words = ["--output", str(folder / "health.json"), "--seconds", "0.01", "--device", "cpu"]
    words += ["--disk", str(folder), "--store", str(folder / "store")]
    health_measuring.main(words)


def measured(folder: Path, change: Callable[[int], None]) -> DeepHealthReport:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        fork_server().Process(target=_rank, args=(rank, store.port, folder, change))
        for rank in range(RANKS)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * RANKS
    return HEALTH_REPORT.validate_json((folder / "health.json").read_bytes())


def _be_late(rank: int) -> None:
    """The products of rank 2 take longer, as on a GPU that is too hot."""
    if rank == 2:
        multiply = torch.mm

        def late(*arguments: Any, **more: Any) -> Any:
            time.sleep(LATE_S)
            return multiply(*arguments, **more)

        vars(torch)["mm"] = late


def _be_wrong(rank: int) -> None:
    """Rank 1 flips a bit of its products, and one of the sums of rank 3."""
    if rank == 1:
        multiply = torch.Tensor.__matmul__

        def wrong(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            result = multiply(one, other)
            if result.dtype == torch.float32:
                result.view(torch.int32)[0, 0] ^= 1 << 20
            return result

        torch.Tensor.__matmul__ = wrong  # type: ignore
    if rank == 3:
        add = torch.add

        def wrong_sum(*arguments: Any, **more: Any) -> Any:
            result = add(*arguments, **more)
            more["out"][-1] ^= 1
            return result

        vars(torch)["add"] = wrong_sum


def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    report = measured(tmp_path, _be_late)
    assert report.is_complete
    kinds = {one.measure for one in report.measurements}
    assert kinds == {"matrix", "memory", "disk_write", "disk_read", "store_write", "store_read"}
    assert len(report.exchanges) == RANKS * (RANKS - 1) // 2
    assert report.wrong == ()
    found = min(health_problems(report, BUSY), key=lambda one: one.value or 0.0)
    assert (found.node, found.rank, found.measure) == (2, 2, "matrix")
    assert not list(tmp_path.glob("store/health~*"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["health.json", "store"]


def test_wrong_results_are_named(tmp_path: Path) -> None:
    report = measured(tmp_path, _be_wrong)
    found = {(one.rank, one.what) for one in report.wrong}
    assert (1, "a matrix product is not that of the CPU") in found or (
        1,
        "the same matrix product gave different results",
    ) in found
    sums = {rank: what for rank, what in found if "sum" in what}
    assert sums == {3: "a sum over this rank and rank 0, 1, 2 was wrong"}
    assert {one.node for one in health_problems(report, BUSY) if one.is_wrong} == {1, 3}
