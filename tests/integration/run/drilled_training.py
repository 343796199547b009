"""Training functions whose ranks wait, once a step of `debug.drill.preempt_at` is finished, until
they are asked to leave. The supervisor has to read of that step before it asks, and small steps
might all be done by then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from hpckit.config.spec import RunSpec
from hpckit.ipc.heartbeat_table import WorkerRequest
from hpckit.ipc.process_environment import WorkerEnvironment
from hpckit.trainer import images, language_model
from hpckit.trainer.rank_agreement import PACE_S
from hpckit.trainer.run_loop import TrainingRun


def of_text(cfg: RunSpec) -> None:
    """Train as the language model does."""
    _train(cfg, language_model.main)


def of_images(cfg: RunSpec) -> None:
    """Train as the image classifier does."""
    _train(cfg, images.main)


def _train(cfg: RunSpec, train: Callable[[RunSpec], None]) -> None:
    steps, drills = TrainingRun.steps, cfg.debug.drill.preempt_at

    def awaiting(self: TrainingRun, *given: Any, **named: Any) -> Iterator[Any]:
        begun: int | None = None
        for batch in steps(self, *given, **named):
            begun = self.step if begun is None else begun
            if any(begun < due <= self.step for due in drills):
                await_request()
                time.sleep(2 * PACE_S)  # ranks agree after each step that is not shorter
            yield batch

    TrainingRun.steps = awaiting  # type: ignore[method-assign]
    train(cfg)


def await_request() -> None:
    """Wait until this rank is asked to leave."""
    heartbeats = WorkerEnvironment.from_env().attach_heartbeats()
    while heartbeats.request() is WorkerRequest.NONE:
        time.sleep(0.05)
