"""The process group of a worker: NCCL on GPUs, gloo on CPUs."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from hpckit.trainer.parallel.collectives import collective_device
from hpckit.trainer.random_seeds import mix, seed_all

STORE_WAIT_S = 10.0
"""Seconds in which rank 0 should listen; after them torch waits, and says what is wrong."""
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.005, 0.1
_MOST_RANKS = 1024
"""Ranks that ask in this way at most: of more, torch's random pauses keep the connections apart."""


def join_process_group(device: str, local_rank: int, timeout_s: float) -> None:
    """Join the process group that torchrun's environment variables describe; a collective that
    takes longer than `timeout_s` seconds fails."""
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    if os.environ["RANK"] != "0" and int(os.environ["WORLD_SIZE"]) <= _MOST_RANKS:
        await_store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", timeout=timedelta(seconds=timeout_s)
    )


def await_store(host: str, port: int, within_s: float = STORE_WAIT_S) -> None:
    """Wait until rank 0 listens at this address, for `within_s` seconds at most.

    Ranks start together, so most are there before rank 0 listens. torch then tries again only after
    a quarter to three quarters of a second (the first pause of its exponential back-off).
    """
    deadline_s, pause_s = time.monotonic() + within_s, _FIRST_PAUSE_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            socket.create_connection((host, port), left_s).close()
            return
        except ConnectionRefusedError:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_PAUSE_S)
        except OSError:  # as an unknown name, which torch reports
            return


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
