"""A training function that hangs in its start, then in its validation, then no more."""

from __future__ import annotations

import time
from typing import Any

from hpckit.config.spec import RunSpec
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.trainer.language_model import main as train
from hpckit.trainer.run_loop import TrainingRun

_IN = ("track", "evaluate")
"""Methods, of which each attempt hangs in the next."""


def main(cfg: RunSpec) -> None:
    attempt = WorkerEnvironment.from_env().attempt
    if attempt < len(_IN):
        setattr(TrainingRun, _IN[attempt], _hang)
    train(cfg)


def _hang(*_: Any, **__: Any) -> None:
    time.sleep(10_000)
