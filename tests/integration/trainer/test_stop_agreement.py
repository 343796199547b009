"""A program of several ranks asks whether to stop, and makes its process group again meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import torch.distributed as dist

from checkpointing.ranks import rank_tree
from hpckit.ipc.heartbeat_table import HeartbeatTable, WorkerRequest
from hpckit.ipc.process_environment import NodeEnvironment, worker_variables
from hpckit.ipc.program_session import ProgramSession
from hpckit.rundir.directory import RunDir
from tests.integration.rank_worlds import JOIN_S, run_world


def go_on_with_fewer(rank: int, tmp: Path) -> tuple[list[bool], int]:
    """Rank 2 of three leaves. Returns what the others are told then, and how many trees are
    open."""
    table, path = HeartbeatTable.create(1)
    session = session_of(rank, tmp, path)
    told = [session.should_stop() for _ in range(3)]
    dist.destroy_process_group()
    size, among = (1, 0) if rank == 2 else (2, rank)
    again = f"file://{tmp / f'again-{size}'}"
    dist.init_process_group("gloo", init_method=again, rank=among, world_size=size)
    if rank == 2:
        return told, 0
    await_an_end()
    table.ask(WorkerRequest.PREEMPT, within_s=1000)
    while not told[-1]:
        told.append(session.should_stop())
    return told[:4], len(rank_tree.open_trees)


def session_of(rank: int, tmp: Path, table: str) -> ProgramSession:
    at = NodeEnvironment(RunDir(tmp), submission=1, generation=1, node=0, nodes=1)
    ranks = {"RANK": rank, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "WORLD_SIZE": 3}
    env = {name: str(value) for name, value in ranks.items()}
    env |= {"TORCHELASTIC_RESTART_COUNT": "0"}
    return ProgramSession.from_env(env | at.to_env() | worker_variables("cpu", table))


def await_an_end() -> None:
    """Wait until it is noticed that a rank has ended."""
    (tree,), deadline_s = rank_tree.open_trees, time.monotonic() + JOIN_S / 2
    while tree.failure is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_those_that_remain_agree_in_a_process_group_of_their_own(tmp_path: Path) -> None:
    *remaining, left = run_world(3, go_on_with_fewer, tmp_path)
    assert left == ([False] * 3, 0)
    assert remaining == [([False] * 4, 1)] * 2
