"""How ranks find each other and exchange small things: hpckit's tree, and a process group of gloo.

    python -m benchmarks.scale.rank_exchange [--ranks 8 32 64] [--alone 128 512] [--rounds 3]

Ranks are processes of this machine, and meet in a TCPStore. "connect" is the time until all of them
have made the group and passed a barrier, "gather" that of an all_gather of 100 bytes, "maximum"
that of a reduction of one number, and "sockets" the largest number of sockets that a rank has more
than before. A gloo group connects each rank to each other. With `--alone`, hpckit runs with more
ranks than gloo is tried with. Elapsed times are those of all ranks on the cores of this machine.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing as mp
import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table as Shown
from torch._C._distributed_c10d import Store, TCPStore

from benchmarks.common.number_arguments import int_from, positive_int
from checkpointing.ranks.rank_network import RankNetwork
from checkpointing.ranks.rank_tree import RankTree

_THING = b"x" * 100
_CALLS = 5
_PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True)
class Exchange:
    """What one group took, in seconds."""

    connect_s: float
    gather_s: float
    maximum_s: float
    sockets: int


class GlooGroup:
    name = "gloo"

    def __init__(self, rank: int, ranks: int, store: Store) -> None:
        self._ranks = ranks
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=_PATIENCE)

    def gather(self) -> None:
        found: list[bytes | None] = [None] * self._ranks
        dist.all_gather_object(found, _THING)

    def maximum(self) -> None:
        dist.all_reduce(torch.ones(1, dtype=torch.int32), op=dist.ReduceOp.MAX)

    def close(self) -> None:
        dist.destroy_process_group()


class TreeGroup:
    name = "hpckit"

    def __init__(self, rank: int, ranks: int, store: Store) -> None:
        network = RankNetwork(rank, ranks, store, _PATIENCE.total_seconds())
        self._tree = RankTree(network, "benchmark", is_main=True)

    def gather(self) -> None:
        for one in self._tree.all_gather(pickle.dumps(_THING)):
            assert one is not None
            pickle.loads(one)  # noqa: S301 - made above

    def maximum(self) -> None:
        self._tree.begin_max(1).result()

    def close(self) -> None:
        self._tree.close()


_ARMS = (TreeGroup, GlooGroup)


def measure(arm: type[TreeGroup] | type[GlooGroup], ranks: int) -> Exchange:
    """Returns what a group of so many processes takes."""
    context = mp.get_context("fork")
    port = context.Value("i", 0)  # of the store of rank 0: no process with threads is forked
    reader, writer = context.Pipe(duplex=False)
    gate = context.Event()
    processes = [
        context.Process(target=_rank, args=(arm, rank, ranks, port, gate, writer))
        for rank in range(ranks)
    ]
    gc.freeze()  # the children copy less
    for process in processes:
        process.start()
    found = reader.recv()
    gate.set()  # all have measured
    for process in processes:
        process.join()
    assert not any(process.exitcode for process in processes)
    return Exchange(*found)


def _rank(arm: type, rank: int, ranks: int, port: Any, gate: Event, pipe: Connection) -> None:
    torch.set_num_threads(1)
    while rank and not port.value:
        time.sleep(0.01)
    store = TCPStore(
        "127.0.0.1", port.value, is_master=not rank, wait_for_workers=False, timeout=_PATIENCE
    )
    port.value = store.port
    _meet(store, "started", rank, ranks)
    before, begun_s = _sockets(), time.monotonic()
    group = arm(rank, ranks, store)
    group.maximum()
    connect_s = time.monotonic() - begun_s
    group.gather()
    times = [_seconds(group.gather), _seconds(group.maximum)]
    store.set(f"sockets/{rank}", str(_sockets() - before))
    if rank == 0:
        sockets = max(int(store.get(f"sockets/{one}")) for one in range(ranks))
        pipe.send((connect_s, *times, sockets))
    gate.wait()
    group.close()
    os._exit(0)


def _meet(store: Store, name: str, rank: int, ranks: int) -> None:
    if store.add(name, 1) == ranks:
        store.set(f"{name}/all", "1")
    store.get(f"{name}/all")


def _seconds(call: Callable[[], None]) -> float:
    begun_s = time.monotonic()
    for _ in range(_CALLS):
        call()
    return (time.monotonic() - begun_s) / _CALLS


def _sockets() -> int:
    links = (path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return sum(link.name.startswith("socket:") for link in links)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int_from(2), nargs="+", default=[8, 32, 64])
    parser.add_argument("--alone", type=int_from(2), nargs="*", default=[128, 512])
    parser.add_argument("--rounds", type=positive_int, default=3)
    settings = parser.parse_args()
    console = Console()
    table = Shown("ranks", "", "connect, s", "gather, ms", "maximum, ms", "sockets of a rank")
    for ranks in (*settings.ranks, *settings.alone):
        arms = _ARMS if ranks in settings.ranks else _ARMS[:1]
        found: dict[str, list[Exchange]] = {arm.name: [] for arm in arms}
        for turn in range(settings.rounds):
            for arm in arms if turn % 2 == 0 else arms[::-1]:
                found[arm.name].append(measure(arm, ranks))
                console.print(f"{ranks:,} ranks, {arm.name}: {found[arm.name][-1]}")
        for name, all in found.items():
            table.add_row(
                f"{ranks:,}",
                name,
                f"{median(one.connect_s for one in all):.2f}",
                f"{1e3 * median(one.gather_s for one in all):.2f}",
                f"{1e3 * median(one.maximum_s for one in all):.2f}",
                str(max(one.sockets for one in all)),
            )
    console.print(table)


if __name__ == "__main__":
    main()
