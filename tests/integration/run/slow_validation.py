"""A training function whose validation, after a step of `debug.drill.preempt_at`, goes on only once
the ranks are asked to leave: a preemption comes in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from data import Batch
from hpckit.config.spec import RunSpec
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.trainer.language_model import main as train
from hpckit.trainer.run_loop import TrainingRun
from hpckit.trainer.validation import Measure
from tests.integration.run.drilled_training import await_request


def main(cfg: RunSpec) -> None:
    if WorkerEnvironment.from_env().at.generation == 1:
        _hold_back(cfg)
    train(cfg)


def _hold_back(cfg: RunSpec) -> None:
    evaluate = TrainingRun.evaluate

    def held_back(
        self: TrainingRun, batches: Iterable[Batch], measure: Measure
    ) -> dict[str, float]:
        def late() -> Iterator[Batch]:
            for batch in batches:
                if self.step in cfg.debug.drill.preempt_at:
                    await_request()
                yield batch

        return evaluate(self, late(), measure)

    TrainingRun.evaluate = held_back  # type: ignore[method-assign]
