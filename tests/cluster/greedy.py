"""A training function whose last rank, at its eighth step, wants more memory than its job has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from data import Batch
from hpckit.config.spec import RunSpec
from hpckit.trainer.language_model import main as train
from hpckit.trainer.run_loop import TrainingRun

AT_STEP = 7
GREED = 4 << 30  # bytes


def main(cfg: RunSpec) -> None:
    steps = TrainingRun.steps

    def greedily(self: TrainingRun, *given: Any, **named: Any) -> Iterator[Batch]:
        for batch in steps(self, *given, **named):
            if self.step == AT_STEP and self.rank == self.world_size - 1:
                bytearray(GREED)  # which writes to all of it
            yield batch

    TrainingRun.steps = greedily  # type: ignore[assignment, method-assign]
    train(cfg)
