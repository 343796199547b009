"""Collectives on a few numbers, and a check that an all-reduce over all ranks is correct."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

_NUMBERS = 1024
_HOST_BYTES = 64  # of a host's name

# Older versions of torch have them by their other names only.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class WrongSumError(RuntimeError):
    """An all-reduce has returned a wrong sum."""


def check_all_reduce(device: torch.device) -> float:
    """Check an all-reduce and return the seconds that it took, including the opening of connections
    if it is the first one of its group. Collective.

    Raises:
        WrongSumError: a sum is wrong; the message names this rank's host.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    begun_s = time.perf_counter()
    numbers = torch.full((_NUMBERS,), rank + 1, dtype=torch.int64, device=device)
    dist.all_reduce(numbers)
    wrong = wrong_sums(numbers, world)
    if wrong:
        raise WrongSumError(
            f"rank {rank} on {socket.gethostname()}: an all-reduce over {world} ranks gave "
            f"{wrong} wrong sums of {_NUMBERS}"
        )
    return time.perf_counter() - begun_s


def wrong_sums(numbers: torch.Tensor, world: int) -> int:
    """Return how many of `numbers` are not the sum of 1 to `world`."""
    return int((numbers != world * (world + 1) // 2).sum().item())


def reduced(numbers: Sequence[float], how: dist.ReduceOp.RedOpType) -> list[float]:
    """Return each number reduced over all ranks. Collective."""
    return start_reduce(numbers, how)()


def start_reduce(
    numbers: Sequence[float], how: dist.ReduceOp.RedOpType
) -> Callable[[], list[float]]:
    """Start to reduce each number over all ranks, and return a function that waits for the result
    and returns it. Collective."""
    if dist.get_world_size() == 1:
        return lambda: list(numbers)
    packed = torch.tensor(numbers, dtype=torch.float64, device=collective_device())
    work = dist.all_reduce(packed, op=how, async_op=True)
    assert work is not None

    def wait() -> list[float]:
        work.wait()
        found: list[float] = packed.tolist()
        return found

    return wait


def gather_rows(row: Sequence[int]) -> list[list[int]]:
    """Return the integers, as many as in `row`, that each rank has given. Collective."""
    mine = torch.tensor(row, dtype=torch.int64, device=collective_device())
    world = dist.get_world_size()
    found = torch.empty(world * len(row), dtype=torch.int64, device=mine.device)
    all_gather_single(found, mine)
    rows: list[list[int]] = found.view(world, len(row)).tolist()
    return rows


def gather_texts(text: str, most_bytes: int) -> list[str]:
    """Return the text of each rank, cut to so many bytes. Collective."""
    cut = text.encode()[:most_bytes].ljust(most_bytes, b"\0")
    mine = torch.frombuffer(bytearray(cut), dtype=torch.uint8).to(collective_device())
    found = torch.empty(dist.get_world_size() * most_bytes, dtype=torch.uint8, device=mine.device)
    all_gather_single(found, mine)
    rows = found.view(-1, most_bytes).tolist()
    return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in rows]


def gather_hosts() -> list[str]:
    """Return the name of each rank's host. Collective."""
    return gather_texts(socket.gethostname(), _HOST_BYTES)


def rows_of_rank_0(rows: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    """Return the rows of rank 0, any number of them, each of `width` integers. Collective."""
    device = collective_device()
    count = torch.tensor([len(rows)], device=device)
    dist.broadcast(count, 0)
    found = torch.tensor(rows, dtype=torch.int64, device=device).reshape(-1, width)
    if dist.get_rank() != 0:
        found = torch.empty(int(count.item()), width, dtype=torch.int64, device=device)
    dist.broadcast(found, 0)
    given: list[list[int]] = found.tolist()
    return given


def barrier() -> None:
    """Wait until all ranks are here. Collective."""
    reduced([0.0], dist.ReduceOp.MAX)


def collective_device() -> str:
    """Return the type of the device on which tensors have to be for a collective of all ranks."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"
