"""A training function that trains slowly from a step on; and one of its ranks says that a GPU has
no memory left, once a test has asked for it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from data import Batch
from hpckit.config.spec import RunSpec
from hpckit.trainer.language_model import main as train
from hpckit.trainer.run_loop import TrainingRun

FROM_STEP = 20
STEP_S = 0.4
SAID = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"


def main(cfg: RunSpec) -> None:
    steps, sign = TrainingRun.steps, Path(cfg.user_config["sign"])

    def faulty(self: TrainingRun, *given: Any, **named: Any) -> Iterator[Batch]:
        for batch in steps(self, *given, **named):
            if self.step >= FROM_STEP:
                time.sleep(STEP_S)
            if os.environ["RANK"] == "1" and sign.exists():
                sign.unlink()
                raise torch.cuda.OutOfMemoryError(SAID)
            yield batch

    TrainingRun.steps = faulty  # type: ignore[assignment, method-assign]
    train(cfg)
