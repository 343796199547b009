"""The program that times collectives: `hpckit bench collectives` runs it on all ranks.

    python -m hpckit.trainer.collectives.collective_timing --output FILE

Each collective is checked for its exact result before it is timed. Then pairs of nodes, and pairs
of ranks within each node, exchange bytes in rounds in which every member has a partner of its own,
so a slow link is found among the healthy ones. Rank 0 writes a `CollectiveReport` as JSON.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from hpckit.system.atomic_files import write_text
from hpckit.trainer.collectives.collective_figures import (
    OPERATIONS,
    REPORT,
    CollectiveReport,
    CollectiveTiming,
    ExchangeTiming,
    GroupKind,
    Operation,
    middle_group,
    rank_label,
    round_robin,
)
from hpckit.trainer.device.device_queue import synchronize
from hpckit.trainer.parallel.collectives import (
    all_gather_single,
    collective_device,
    gather_hosts,
    reduce_scatter_single,
    reduced,
)
from hpckit.trainer.parallel.process_group import join_process_group

_ELEMENT = 4  # bytes of an int32
_TIMEOUT_S = 600.0
_MOST_CALLS = 200
_SIZES = {
    "cpu": (1 << 12, 1 << 16, 1 << 20, 1 << 24),
    "cuda": (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28, 1 << 30),
}
_EXCHANGE_BYTES = {"cpu": 1 << 22, "cuda": 1 << 26}
_REPEATS = 3
"""Measurements of an exchange, of which the best counts: a bad link is slow in each of them."""
_MOST_ROUNDS = 32
"""Number of partners of a node: enough for a median, on any number of nodes."""


@dataclass(frozen=True)
class CollectiveGroup:
    """The process group of this rank, and the groups of the same kind on the other ranks."""

    kind: GroupKind
    process_group: dist.ProcessGroup
    members: dict[str, list[int]]
    """Global ranks of each group of this kind, by its name."""

    @property
    def ranks(self) -> int:
        return dist.get_world_size(self.process_group)


class CollectiveTimer:
    """Times the calls of one rank. Its methods are collective."""

    def __init__(self, device: torch.device, budget_s: float) -> None:
        """Args:
        budget_s: seconds for each measurement.
        """
        self.device, self._budget_s = device, budget_s
        self._world = dist.get_world_size()

    def seconds(self, call: Callable[[], object]) -> list[float]:
        """Return the seconds per call on each rank, after a first call that opens connections and
        a second one by which the number of calls is chosen."""
        self._timed(call, 1)
        (longest_s,) = reduced([self._timed(call, 1)], dist.ReduceOp.MAX)
        count = min(_MOST_CALLS, max(1, int(self._budget_s / max(longest_s, 1e-6))))
        return self.all_values(self._timed(call, count))

    def all_values(self, value: float) -> list[float]:
        """Return the values of all ranks."""
        device = collective_device()
        found = torch.empty(self._world, dtype=torch.float64, device=device)
        all_gather_single(found, torch.tensor([value], dtype=torch.float64, device=device))
        return cast(list[float], found.tolist())

    def _timed(self, call: Callable[[], object], count: int) -> float:
        synchronize(self.device)
        dist.barrier()
        begun_s = time.perf_counter()
        for _ in range(count):
            call()
        synchronize(self.device)
        return (time.perf_counter() - begun_s) / count


PairCall: TypeAlias = Callable[[CollectiveTimer, int, int], Callable[[], object]]
"""Returns the call that is timed with a partner, given the partner's rank and the bytes in each
direction."""


@dataclass(frozen=True)
class PreparedCollective:
    """A collective with its buffers."""

    call: Callable[[], object]
    size: int
    is_right: Callable[[], bool]
    """Whether the first call gave the right result on this rank."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Time everything, and write the report on rank 0. Collective."""
    options = _parse(arguments)
    is_cuda = options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available())
    local_rank, local = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    join_process_group("cuda" if is_cuda else "cpu", local_rank, _TIMEOUT_S)
    device = torch.device("cuda", local_rank) if is_cuda else torch.device("cpu")
    timer = CollectiveTimer(device, options.budget_s)
    names = node_names(local)
    sizes = options.sizes or _SIZES[device.type]
    groups = _groups(names, local, device)
    timings = [
        _time_collective(timer, group, operation, size)
        for group in groups
        for operation in options.operations
        for size in sizes
    ]
    exchanges = [*node_exchanges(timer, names, local), *rank_exchanges(timer, names, local)]
    if dist.get_rank() == 0:
        report = CollectiveReport(
            nodes=tuple(names),
            ranks_per_node=local,
            backend=dist.get_backend(),
            torch=torch.__version__,
            device=torch.cuda.get_device_name(device) if is_cuda else "cpu",
            collectives=tuple(timings),
            exchanges=tuple(exchanges),
        )
        write_text(options.output, REPORT.dump_json(report, indent=2).decode() + "\n")
    dist.barrier()
    dist.destroy_process_group()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="collective_timing")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=OPERATIONS)
    parser.add_argument("--sizes", type=int, nargs="+", help="bytes; by default by the device")
    parser.add_argument("--budget-s", type=float, default=0.2, help="seconds per measurement")
    return parser.parse_args(arguments)


def node_names(local: int) -> list[str]:
    """Return the name of each node, which has `local` ranks: of equal ones, which one machine gives
    that simulates several nodes, each with its number. Collective."""
    names = gather_hosts()[::local]
    if len(set(names)) == len(names):
        return names
    return [f"{name} (node {number})" for number, name in enumerate(names)]


def _groups(names: list[str], local: int, device: torch.device) -> list[CollectiveGroup]:
    """Return the world, and if there are several nodes with several ranks each, the nodes and the
    rails."""
    nodes, group = len(names), dist.group.WORLD
    assert group is not None
    found = [CollectiveGroup("world", group, {"all ranks": list(range(nodes * local))})]
    if nodes == 1 or local == 1:
        return found
    mesh = init_device_mesh(device.type, (nodes, local), mesh_dim_names=("rail", "node"))
    of_node = {name: [node * local + k for k in range(local)] for node, name in enumerate(names)}
    of_rail = {f"local rank {k}": [node * local + k for node in range(nodes)] for k in range(local)}
    found.append(CollectiveGroup("node", mesh.get_group("node"), of_node))
    found.append(CollectiveGroup("rail", mesh.get_group("rail"), of_rail))
    return found


def _time_collective(
    timer: CollectiveTimer, group: CollectiveGroup, operation: Operation, size: int
) -> CollectiveTiming:
    made = prepare(operation, size, group.process_group, timer.device)
    made.call()
    wrong = timer.all_values(0.0 if made.is_right() else 1.0)
    found = timer.seconds(made.call)
    slowest_ranks = {
        name: max(found[rank] for rank in ranks) for name, ranks in group.members.items()
    }
    seconds, slowest, slowest_s = middle_group(slowest_ranks)
    return CollectiveTiming(
        operation=operation,
        group=group.kind,
        ranks=group.ranks,
        size=made.size,
        seconds=seconds,
        slowest=slowest,
        slowest_s=slowest_s,
        wrong_ranks=tuple(rank for rank, value in enumerate(wrong) if value),
    )


def prepare(
    operation: Operation, size: int, group: dist.ProcessGroup, device: torch.device
) -> PreparedCollective:
    """Return a collective over `group` on integers, whose result can be compared exactly.

    Args:
        size: bytes, rounded up to a whole number for each rank; see `CollectiveTiming.size`.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    part = max(1, math.ceil(size / _ELEMENT / ranks))
    whole = part * ranks
    total = ranks * (ranks + 1) // 2

    def numbers(count: int) -> torch.Tensor:
        return torch.full((count,), rank + 1, dtype=torch.int32, device=device)

    def is_filled(tensor: torch.Tensor, value: int) -> bool:
        return bool((tensor == value).all())

    def is_in_turn(tensor: torch.Tensor) -> bool:
        wanted = torch.arange(1, ranks + 1, dtype=torch.int32, device=device)
        return bool((tensor.view(ranks, part) == wanted[:, None]).all())

    given, result = numbers(whole), numbers(whole)
    bytes_ = whole * _ELEMENT
    if operation == "all_reduce":
        return PreparedCollective(
            lambda: dist.all_reduce(result, group=group), bytes_, lambda: is_filled(result, total)
        )
    if operation == "broadcast":
        first = dist.get_global_rank(group, 0)
        return PreparedCollective(
            lambda: dist.broadcast(result, src=first, group=group),
            bytes_,
            lambda: is_filled(result, 1),
        )
    if operation == "all_gather":
        own = numbers(part)
        return PreparedCollective(
            lambda: all_gather_single(result, own, group=group),
            bytes_,
            lambda: is_in_turn(result),
        )
    if operation == "reduce_scatter":
        own = numbers(part)
        return PreparedCollective(
            lambda: reduce_scatter_single(own, given, group=group),
            bytes_,
            lambda: is_filled(own, total),
        )
    return PreparedCollective(
        lambda: dist.all_to_all_single(result, given, group=group),
        bytes_,
        lambda: is_in_turn(result),
    )


def node_exchanges(
    timer: CollectiveTimer, names: list[str], local: int, prepare_call: PairCall | None = None
) -> Iterator[ExchangeTiming]:
    """Exchange bytes between nodes: each rank with the one of its number on the other node.
    Collective.

    Args:
        prepare_call: what the two ranks do; None: `exchange_call`.
    """
    size = _EXCHANGE_BYTES[timer.device.type]
    node, number = divmod(dist.get_rank(), local)
    for partners in round_robin(len(names))[:_MOST_ROUNDS]:
        other = partners[node]
        peer = None if other is None else other * local + number
        found = _exchange(timer, peer, size, prepare_call or exchange_call)
        for one, partner in enumerate(partners):
            if partner is not None and one < partner:
                seconds = max(
                    max(found[one * local : (one + 1) * local]),
                    max(found[partner * local : (partner + 1) * local]),
                )
                yield ExchangeTiming("nodes", names[one], names[partner], size * local, seconds)


def rank_exchanges(
    timer: CollectiveTimer, names: list[str], local: int, prepare_call: PairCall | None = None
) -> Iterator[ExchangeTiming]:
    """Exchange bytes between the ranks of each node, on all nodes at the same time. Collective.

    Args:
        prepare_call: what the two ranks do; None: `exchange_call`.
    """
    size = _EXCHANGE_BYTES[timer.device.type]
    node, number = divmod(dist.get_rank(), local)
    for partners in round_robin(local):
        other = partners[number]
        peer = None if other is None else node * local + other
        found = _exchange(timer, peer, size, prepare_call or exchange_call)
        for at, name in enumerate(names):
            for one, partner in enumerate(partners):
                if partner is not None and one < partner:
                    first, second = at * local + one, at * local + partner
                    yield ExchangeTiming(
                        "ranks",
                        rank_label(name, one),
                        rank_label(name, partner),
                        size,
                        max(found[first], found[second]),
                    )


def _exchange(
    timer: CollectiveTimer, other: int | None, size: int, prepare_call: PairCall
) -> list[float]:
    """Return the seconds of an exchange with the rank `other` on each rank, None: with no rank."""
    call = _nothing if other is None else prepare_call(timer, other, size)
    measured = [timer.seconds(call) for _ in range(_REPEATS)]
    return [min(found) for found in zip(*measured, strict=True)]


def _nothing() -> None:
    """The exchange of a rank without a partner."""


def exchange_call(timer: CollectiveTimer, peer: int, size: int) -> Callable[[], object]:
    """Return a call that exchanges `size` bytes with the rank `peer`, in both directions."""
    sent = torch.ones(size // _ELEMENT, dtype=torch.int32, device=timer.device)
    received = torch.empty_like(sent)

    def call() -> None:
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]
        )
        for work in works:
            work.wait()

    return call


if __name__ == "__main__":
    main()
