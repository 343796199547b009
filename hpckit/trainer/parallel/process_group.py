"""The process group of a worker: NCCL on GPUs, gloo on CPUs."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from hpckit.trainer.parallel.collectives import collective_device
from hpckit.trainer.random_seeds import mix, seed_all


def join_process_group(device: str, local_rank: int, timeout_s: float) -> None:
    """Join the process group that torchrun's environment variables describe; a collective that
    takes longer than `timeout_s` seconds fails."""
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", timeout=timedelta(seconds=timeout_s)
    )


def agreed_attempt(restarts: int, local_world_size: int) -> int:
    """Return a number of this attempt that is the same on all ranks and larger than that of any
    earlier attempt. Collective.

    torchrun counts restarts per node, and only on nodes where a worker failed. At least one node
    counts each restart, so the sum over nodes grows.
    """
    total = torch.tensor([restarts], device=collective_device())
    dist.all_reduce(total)
    return int(total.item()) // local_world_size


def make_deterministic(seed: int) -> None:
    """Allow only deterministic kernels, which are not chosen by timing, and seed the random number
    generators alike on all ranks for what is drawn before the first step."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    seed_all(mix(seed, "start"))
