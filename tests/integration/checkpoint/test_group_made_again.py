"""A process group that is destroyed and made again while a network of the first one is open."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest import mock

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store

from checkpointing.ranks import rank_group
from checkpointing.ranks.rank_group import RankGroup
from tests.integration.rank_worlds import JOIN_S, run_world


def make_again(rank: int, tmp: Path) -> list[list[int]]:
    """Returns what the ranks gather in the second group, and then in the first one."""
    shared = FileStore(str(tmp / "shared"), 2)  # as that of the agent of torchrun

    def store(prefix: str) -> Store:
        return PrefixStore(prefix, shared)

    with mock.patch.object(rank_group, "default_store", store):
        first = RankGroup()
        first.all_gather(rank, first.control)
        dist.destroy_process_group()
        again = f"file://{tmp / 'again'}"
        dist.init_process_group("gloo", init_method=again, rank=rank, world_size=2)
        if rank == 0:  # rank 1 is earlier, and finds where rank 0 listens for the first group
            await_a_refusal(first)
        second = RankGroup()
        found = [ranks.all_gather(rank, ranks.control) for ranks in (second, first)]
        for ranks in (first, second):
            ranks.close()
    return found


def await_a_refusal(ranks: RankGroup) -> None:
    assert ranks._network is not None
    refused = threading.Event()
    with mock.patch.object(ranks._network._listener, "_refuse", refused.set):
        assert refused.wait(JOIN_S / 2)


def test_ranks_of_the_second_group_do_not_connect_to_the_first_one(tmp_path: Path) -> None:
    assert run_world(2, make_again, tmp_path) == [[[0, 1], [0, 1]]] * 2
