"""A checkpoint manager for torchtitan under `hpckit launch`. In a config it replaces torchtitan's:

checkpoint=HpckitCheckpoints.Config(enable=True, interval=50, keep_latest_k=3)
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any

try:
    from torchtitan.components.metrics import (  # type: ignore[import-not-found, unused-ignore]
        BaseLogger,
    )
except ImportError as error:
    raise ImportError(
        "hpckit.integrations.torchtitan needs torchtitan 0.3: pip install torchtitan"
    ) from error

from checkpointing.integrations.torchtitan import Checkpoints
from hpckit import client

log = logging.getLogger(__name__)

_LOGGED = {"loss_metrics/global_avg_loss": "loss", "grad_norm": "grad_norm", "lr": "lr"}
"""Metrics of torchtitan's log, and their names in hpckit."""


class HpckitCheckpoints(Checkpoints):
    """A checkpoint manager that also reports steps, validations and checkpoints to hpckit, and
    leaves when hpckit asks for it.

    torchtitan calls `save` after every step. When hpckit asks, all ranks save the same step, wait
    until it is durable, and end `Trainer.train`. A validation that is due after that step is left
    out. Outside hpckit it is `Checkpoints`.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Checkpoints.Config):
        """The options of `Checkpoints`."""

    def __init__(self, config: Config, **parts: Any) -> None:
        super().__init__(config, **parts)
        self._trainer = parts["states"].get("train_state")
        self._is_first_save = True
        self._newest = NewestMetrics(BaseLogger())
        if (metrics := getattr(self._trainer, "metrics_processor", None)) is not None:
            metrics.logger = self._newest = NewestMetrics(metrics.logger)

    def save(self, curr_step: int, last_step: bool = False) -> bool:
        """Report the step, save if it is time, and end the training if hpckit asks for it."""
        if self._is_first_save:  # the Trainer makes its validator after this manager
            self._is_first_save = False
            _report_validations(getattr(self._trainer, "validator", None))
        if curr_step > 0:
            client.step(curr_step, **self._newest.of_step(curr_step))
        if not last_step and client.should_stop():
            self._leave(curr_step)
        with client.saving():
            return bool(super().save(curr_step, last_step))

    def close(self) -> None:
        """Release everything; training is over."""
        super().close()
        client.finished()

    def _leave(self, step: int) -> None:
        with client.saving():
            is_durable = self.save_now(step)
            self.close()
        if not is_durable:
            log.warning("step %d is not saved", step)
        log.info("training stops after step %d, as it was asked to", step)
        raise SystemExit(0)  # `Trainer.train` returns at it, as torch's `record` decorates it


class NewestMetrics(BaseLogger):  # type: ignore[misc, unused-ignore]
    """A logger of torchtitan that keeps what was logged last.

    Args:
        other: the logger in the place of which it is, and which also gets everything.
    """

    def __init__(self, other: BaseLogger) -> None:
        self._other = other
        self._step, self._metrics = -1, dict[str, float]()

    def close(self) -> None:
        """Closes the other logger."""
        self._other.close()

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Takes the metrics of a step."""
        self._other.log(metrics, step)
        self._step = step
        self._metrics = {name: metrics[key] for key, name in _LOGGED.items() if key in metrics}

    def of_step(self, step: int) -> dict[str, float]:
        """Returns the metrics of `step`; torchtitan does not log every step."""
        return self._metrics if step == self._step else {}


def _report_validations(validator: Any) -> None:
    """Makes a validator report that it validates."""
    if validator is None:
        return
    validate = validator.validate

    @functools.wraps(validate)
    def reported(*args: Any, **options: Any) -> Any:
        with client.validating():
            return validate(*args, **options)

    validator.validate = reported
