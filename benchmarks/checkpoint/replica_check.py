"""What the comparison of replicas costs: steps with saves that compare, against saves that do not.

    python -m benchmarks.checkpoint.replica_check [--mib 1024] [--steps 10] [--rounds 9]

Two ranks over gloo, one on each core, hold the same state of so many MiB. A step multiplies
matrices for about a second and then steps an optimizer, which waits for what is being copied; the
ranks meet after each. At the first of each so many steps, an overlapped save begins. An arm is that
many steps, with check_replicas="every" or False, and otherwise the same; what is measured is their
time. Every save is at its end before the next arm begins.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.number_arguments import positive_int
from checkpointing import Checkpointer
from checkpointing.save.replica_check import CheckReplicas

CHECKED, UNCHECKED = "compared", "not compared"
_STEP_S = 1.0
_TENSORS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=positive_int, default=1024)
    parser.add_argument(
        "--steps", type=positive_int, default=10, help="of which the first one saves"
    )
    parser.add_argument("--rounds", type=positive_int, default=9)
    settings = parser.parse_args()
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        spawn(_measure, (settings, Path(folder), port), nprocs=2)  # type: ignore[no-untyped-call]


def _measure(rank: int, settings: argparse.Namespace, folder: Path, port: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    checks: dict[str, CheckReplicas] = {UNCHECKED: False, CHECKED: "every"}
    products = _count_products()
    arms = {
        name: ReplicaCheckArm(folder / name.replace(" ", "-"), settings, check, products)
        for name, check in checks.items()
    }
    measured = interleave(
        {name: partial(arm.train, settings.steps) for name, arm in arms.items()},
        settings.rounds + 1,
    )
    for arm in arms.values():
        arm.close()
    if rank == 0:
        kept = {name: seconds[1:] for name, seconds in measured.items()}
        report(ArmComparison("replica_check", UNCHECKED, "s", kept), vars(settings))
    dist.destroy_process_group()


class ReplicaCheckArm:
    """A state and its Checkpointer."""

    def __init__(
        self, folder: Path, settings: argparse.Namespace, check: CheckReplicas, products: int
    ) -> None:
        torch.manual_seed(0)
        size = (settings.mib << 18) // _TENSORS  # float32
        self._model = nn.ParameterList(torch.zeros(size) for _ in range(_TENSORS))
        optimizer = torch.optim.SGD(self._model.parameters(), lr=0.0)
        self._state: dict[str, Any] = {"model": self._model, "optimizer": optimizer}
        self._optimizer = optimizer
        self._checkpointer = Checkpointer(folder, run="r", check_replicas=check)
        self._checkpointer.restore(self._state)
        self._products, self._step = products, 0

    def train(self, steps: int) -> float:
        dist.barrier()
        begun_s = time.perf_counter()
        for number in range(steps):
            self._step += 1
            if number == 0:
                self._checkpointer.save(self._step, self._state)
            _compute(self._products)
            self._optimizer.step()
            dist.barrier()
        seconds = time.perf_counter() - begun_s
        self._checkpointer.wait()
        return seconds

    def close(self) -> None:
        self._checkpointer.close()


def _compute(products: int) -> None:
    factor = torch.full((512, 512), 1 / 512)
    result = factor
    for _ in range(products):
        result = torch.mm(factor, result)


def _count_products() -> int:
    """Returns how many of them take a second on the slower rank."""
    _compute(50)
    begun_s = time.perf_counter()
    _compute(50)
    seconds = torch.tensor(time.perf_counter() - begun_s)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return max(1, round(50 * _STEP_S / float(seconds)))


if __name__ == "__main__":
    main()
