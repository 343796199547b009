"""A training function whose validation takes its time, at first: a preemption comes in it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from data import Batch
from hpckit.config.spec import RunSpec
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.trainer.language_model import main as train
from hpckit.trainer.run_loop import TrainingRun
from hpckit.trainer.validation import Measure

BATCH_S = 1.0


def main(cfg: RunSpec) -> None:
    if WorkerEnvironment.from_env().at.generation == 1:
        _slow_down()
    train(cfg)


def _slow_down() -> None:
    evaluate = TrainingRun.evaluate

    def slowly(self: TrainingRun, batches: Iterable[Batch], measure: Measure) -> dict[str, float]:
        def late() -> Iterator[Batch]:
            for batch in batches:
                time.sleep(BATCH_S)
                yield batch

        return evaluate(self, late(), measure)

    TrainingRun.evaluate = slowly  # type: ignore[method-assign]
