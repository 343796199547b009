"""A training function of steps of a fixed duration, in which a rank of one node is slow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from hpckit.config.spec import RunSpec
from hpckit.trainer.run_loop import training_run

STEP_S = 0.2
SLOWER = "slower"
"""Name of the file in `root` with the number of the node whose first rank is slow, and the share by
which it is slower."""


class Batches:
    """Batches that are the same on all ranks."""

    def __iter__(self) -> Iterator[Tensor]:
        numbers = torch.Generator().manual_seed(1)
        while True:
            yield torch.randn(4, 8, generator=numbers)


class Trainee:
    """A model whose gradients are averaged over ranks."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def loss(self, batch: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss: Tensor = self.model(batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


def losses(steps: int, ranks: int) -> list[float]:
    """The losses of a run that nothing has disturbed."""
    it, found = Trainee(), []
    for _, batch in zip(range(steps), Batches(), strict=False):
        found.append(it.loss(batch).item())
        for parameter in it.model.parameters():
            assert parameter.grad is not None
            parameter.grad = sum([parameter.grad] * ranks, torch.zeros(())) / ranks
        it.optimizer.step()
    return found


def excess(file: Path) -> float:
    """The share by which this rank is slower."""
    node, share = file.read_text().split() if file.exists() else ("", "0")
    is_slow = node == os.environ["HPCKIT_NODE"] and os.environ["LOCAL_RANK"] == "0"
    return float(share) if is_slow else 0.0


def main(cfg: RunSpec) -> None:
    slower = Path(cfg.root) / SLOWER
    with training_run(cfg) as run:
        it = Trainee()
        run.track(model=it.model, optimizer=it.optimizer)
        for batch in run.steps(Batches()):
            with run.timed("forward"):
                time.sleep(STEP_S * (1 + excess(slower)))
                loss = it.loss(batch)
            with run.timed("backward"):
                for parameter in it.model.parameters():
                    assert parameter.grad is not None
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= run.world_size
            with run.timed("optimizer"):
                it.optimizer.step()
            run.log(loss=loss)
