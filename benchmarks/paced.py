"""A training function whose steps take a fixed time, most of which it sleeps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from data import Batch
from hpckit.run.spec import RunSpec
from hpckit.training.language_model import main as train
from hpckit.training.run import TrainingRun

STEP_S = 0.2


def main(cfg: RunSpec) -> None:
    """As the language model's, at a step per `STEP_S` seconds."""
    steps = TrainingRun.steps

    def paced(self: TrainingRun, *given: Any, **named: Any) -> Iterator[Batch]:
        begun_s = time.monotonic()
        for batch in steps(self, *given, **named):
            yield batch
            time.sleep(max(0.0, begun_s + STEP_S - time.monotonic()))
            begun_s = time.monotonic()

    TrainingRun.steps = paced  # type: ignore[method-assign]
    train(cfg)
