"""A training function that leaves Slurm time: it trains slowly towards its end, at first."""

from __future__ import annotations

import time
from collections.abc import Iterator

from data import Batch, Loader
from hpckit.run.environment import WorkerEnvironment
from hpckit.run.spec import RunSpec
from hpckit.training.language_model import main as train
from hpckit.training.run import TrainingRun

FROM_STEP = 20
STEP_S = 0.25


def main(cfg: RunSpec) -> None:
    if WorkerEnvironment.from_env().at.generation == 1:
        _slow_down()
    train(cfg)


def _slow_down() -> None:
    steps = TrainingRun.steps

    def slowly(run: TrainingRun, loader: Loader) -> Iterator[Batch]:
        for batch in steps(run, loader):
            if run.step >= FROM_STEP:
                time.sleep(STEP_S)
            yield batch

    TrainingRun.steps = slowly  # type: ignore[assignment, method-assign]
