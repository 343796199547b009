"""A training function that leaves Slurm time: it trains slowly towards its end, at first.

`app.unhurried`: so many generations do, instead of one; `app.step_s`: seconds of each such step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from data import Batch
from hpckit.config.spec import RunSpec
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.trainer.language_model import main as train
from hpckit.trainer.run_loop import TrainingRun

FROM_STEP = 20
STEP_S = 1.0


def main(cfg: RunSpec) -> None:
    if WorkerEnvironment.from_env().at.generation <= cfg.user_config.get("unhurried", 1):
        _slow_down(cfg.user_config.get("step_s", STEP_S))
    train(cfg)


def _slow_down(step_s: float) -> None:
    steps = TrainingRun.steps

    def slowly(self: TrainingRun, *given: Any, **named: Any) -> Iterator[Batch]:
        for batch in steps(self, *given, **named):
            if self.step >= FROM_STEP:
                time.sleep(step_s)
            yield batch

    TrainingRun.steps = slowly  # type: ignore[assignment, method-assign]
