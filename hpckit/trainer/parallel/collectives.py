"""Whether the ranks of a group reach each other and add up right, and where their numbers meet."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

_NUMBERS = 1024


class WrongSumError(RuntimeError):
    """Numbers went wrong on their way between ranks."""


def check_all_reduce(device: torch.device) -> float:
    """Seconds that it took; the first one of a group makes its connections too. Collective.

    Raises:
        WrongSumError: the sum is wrong; names this rank's host.
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
    """How many of the sums of 1 to `world` are not right."""
    return int((numbers != world * (world + 1) // 2).sum().item())


def reduced(numbers: Sequence[float], how: dist.ReduceOp.RedOpType) -> list[float]:
    """Each of them over all ranks. Collective."""
    return reducing(numbers, how)()


def reducing(numbers: Sequence[float], how: dist.ReduceOp.RedOpType) -> Callable[[], list[float]]:
    """The same under way, and what waits for it. Collective."""
    if dist.get_world_size() == 1:
        return lambda: list(numbers)
    packed = torch.tensor(numbers, dtype=torch.float64, device=meeting_device())
    work = dist.all_reduce(packed, op=how, async_op=True)
    assert work is not None

    def wait() -> list[float]:
        work.wait()
        found: list[float] = packed.tolist()
        return found

    return wait


def meeting_device() -> str:
    """Where numbers have to be, to go to other ranks."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"
