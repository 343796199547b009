"""Ranks that are threads of this process, connected as processes are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

from torch._C._distributed_c10d import HashStore, Store

from checkpointing.ranks.rank_group import RankGroup
from checkpointing.ranks.rank_network import RankNetwork
from checkpointing.ranks.rank_tree import RankTree

T = TypeVar("T")
PATIENCE_S = 60.0


def meeting_store() -> Store:
    """A store in which the threads of this process meet."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=PATIENCE_S))
    return store


class ThreadRanks(RankGroup):
    """A rank that is a thread."""

    def __init__(self, rank: int, world_size: int, store: Store) -> None:
        self.rank, self.world_size, self._has_processes = rank, world_size, True
        self._network = RankNetwork(rank, world_size, store, PATIENCE_S)
        self.control = RankTree(self._network, "control", is_main=True)
        self.structures = RankTree(self._network, "structures")


def on_thread_ranks(world_size: int, do: Callable[[ThreadRanks], T]) -> list[T]:
    """What `do` returns on each rank; the connections are closed when all have ended."""
    store, met = meeting_store(), threading.Barrier(world_size)
    opened: list[ThreadRanks] = []

    def one(rank: int) -> T:
        ranks = ThreadRanks(rank, world_size, store)
        opened.append(ranks)
        met.wait(PATIENCE_S)
        return do(ranks)

    with ThreadPoolExecutor(world_size) as pool:
        try:
            return list(pool.map(one, range(world_size)))
        finally:
            met.abort()
            pool.shutdown()
            close_all(opened)


def close_all(opened: Sequence[ThreadRanks]) -> None:
    for ranks in opened:
        ranks.close()
