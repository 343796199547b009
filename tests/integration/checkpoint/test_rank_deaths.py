"""Ranks that are killed, or leave by an exception: all others learn which one it was, wherever they
wait."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from checkpointing import Checkpointer, SaveError
from checkpointing.errors import OtherRankError
from checkpointing.ranks import rank_tree
from checkpointing.ranks.rank_group import RankGroup
from tests.forkserver import fork_server
from tests.integration.rank_worlds import JOIN_S, run_world
from tests.integration.service.service_nodes import until

RANKS = 7
OVER = "over"  # a file beside the meeting


def work(rank: int, meeting: Path, killed: int, waits: str, pipe: Connection) -> None:
    rank_tree.FAN_OUT = 2  # so that there are inner ranks
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    ranks = RankGroup()
    ranks.all_gather(rank, ranks.control)
    if rank == killed:
        if os.fork() == 0:  # as the workers of a loader, which live on and hold all descriptors
            while not meeting.with_name(OVER).exists():
                time.sleep(0.05)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        if waits == "in a call":
            ranks.all_gather(rank, ranks.control)
        elif waits == "for a rank":
            ranks.receive(next(r for r in range(RANKS) if r not in (rank, killed)))
        else:
            while ranks.control is not None and ranks.control.failure is None:
                time.sleep(0.01)
            ranks.from_rank0(lambda: None)
    except OtherRankError as error:
        pipe.send(str(error))
    os._exit(0)


@pytest.mark.parametrize("waits", ["in a call", "for a rank", "for nobody"])
@pytest.mark.parametrize("killed", [0, 1, 6])
def test_all_others_learn_which_rank_was_killed(tmp_path: Path, killed: int, waits: str) -> None:
    context = fork_server()
    pipes = [context.Pipe(duplex=False) for _ in range(RANKS)]
    ranks = [
        context.Process(target=work, args=(rank, tmp_path / "meeting", killed, waits, sender))
        for rank, (_, sender) in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    try:
        for rank, process in enumerate(ranks):
            process.join(JOIN_S)
            if rank != killed:
                assert process.exitcode == 0
                told = pipes[rank][0].recv()
                assert told.startswith(f"another rank has ended: rank {killed} "), told
    finally:
        (tmp_path / OVER).touch()
        for process in ranks:
            process.kill()


def leave(rank: int, tmp: Path, how: str) -> str:
    """Rank 1 leaves its Checkpointer and goes on. Returns what rank 0 is told, or the threads of
    connections that rank 1 still has."""
    told, state = tmp / "told", {"w": torch.ones(3)}
    ckpt = Checkpointer(tmp / "store", run="r")
    ckpt.save(1, state)
    if rank == 0:
        with pytest.raises(SaveError) as caught:
            ckpt.wait()
        told.touch()
        return str(caught.value)
    if how == "forgotten":
        del ckpt
    else:
        with pytest.raises(KeyError), ckpt:
            raise KeyError(how)
    until(lambda: not left_threads() and told.exists(), "rank 1 has closed, and rank 0 is told")
    return ""


def left_threads() -> list[str]:
    gc.collect()
    return [one.name for one in threading.enumerate() if one.name.startswith("ranks")]


@pytest.mark.parametrize("how", ["raised", "forgotten"])
def test_a_rank_that_leaves_its_checkpointer_and_goes_on_leaves_nobody_waiting(
    tmp_path: Path, how: str
) -> None:
    told, nothing = run_world(2, partial(leave, how=how), tmp_path)
    assert "another rank has ended: rank 1 " in told
    assert nothing == ""
