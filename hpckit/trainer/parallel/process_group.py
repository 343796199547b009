"""The process group of a worker: NCCL on GPUs, gloo on CPUs."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from hpckit.trainer.random_seeds import mix, seed_all


def join(device: str, local_rank: int, timeout_s: float) -> None:
    """Join the group that torchrun's environment variables describe."""
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", timeout=timedelta(seconds=timeout_s)
    )


def agreed_attempt(restarts: int, local_world_size: int) -> int:
    """Return a number of this attempt that is the same on all ranks and larger than that of any
    earlier attempt.

    torchrun counts restarts per node, and a node whose neighbour failed does not count its own. But
    each restart is counted by at least one node, so the sum over nodes grows. Collective.
    """
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    total = torch.tensor([restarts], device=device)
    dist.all_reduce(total)
    return int(total.item()) // local_world_size


def make_deterministic(seed: int) -> None:
    """Allow only kernels with a fixed order of summation, chosen without timing, and seed the
    generators for what is drawn before the first step, the same on all ranks."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    seed_all(mix(seed, "start"))
