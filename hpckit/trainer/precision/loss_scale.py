"""Loss scaling, by which gradients in fp16 neither vanish nor overflow.

Micikevicius et al., "Mixed Precision Training" (2018), section 3.2.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from hpckit.trainer.errors import TrainingError

log = logging.getLogger(__name__)

FIRST, LEAST = 2.0**16, 2.0**-16
GROWTH, BACKOFF = 2.0, 0.5
INTERVAL = 2000  # steps; these are the defaults of torch.amp.GradScaler


class LossScale:
    """The loss scale, which grows after `INTERVAL` steps without an overflow. An overflow shrinks
    it, and its step is skipped. If it is used, it is part of the state of a run; else it is 1."""

    def __init__(self, *, is_used: bool) -> None:
        self._is_used = is_used
        self._good = self._skipped = 0
        self.value = FIRST if is_used else 1.0
        """The factor by which the loss is multiplied."""

    def step(
        self, optimizer: torch.optim.Optimizer, norm: Tensor, *, is_update: bool = True
    ) -> None:
        """Run the step of `optimizer` unless gradients have overflowed.

        Args:
            norm: norm of all gradients, which is the same on all ranks, so that they agree without
                communication.
            is_update: whether the optimizer makes this step; the scale is adapted in any case.

        Raises:
            TrainingError: gradients overflow with the smallest scale, too.
        """
        if self._is_used and not bool(norm.isfinite()):
            self._shrink()
            return
        if is_update:
            optimizer.step()
        if self._is_used:
            self._grow()

    @property
    def present(self) -> dict[str, float]:
        """Return the scale of the present step as a metric; nothing if it is not used."""
        return {"loss_scale": self.value} if self._is_used else {}

    @property
    def metrics(self) -> dict[str, float]:
        """Return the scale of the next step and the number of skipped steps of the run; nothing if
        it is not used."""
        return {"loss_scale": self.value, "skipped_steps": self._skipped} if self._is_used else {}

    @property
    def tracked(self) -> dict[str, LossScale]:
        """Return what has to be tracked as state of the run."""
        return {"loss_scale": self} if self._is_used else {}

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value, "good": self._good, "skipped": self._skipped}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = float(state["value"])
        self._good, self._skipped = int(state["good"]), int(state["skipped"])

    def _grow(self) -> None:
        self._good += 1
        if self._good == INTERVAL:
            self.value, self._good = self.value * GROWTH, 0

    def _shrink(self) -> None:
        self._skipped += 1
        self.value, self._good = self.value * BACKOFF, 0
        if self.value < LEAST:
            raise TrainingError(
                "precision.compute=fp16: gradients are not finite however small the loss is "
                f"scaled ({self.value:g}): the loss itself is not, or the model needs "
                "precision=bf16 or fp32"
            )
        log.info("gradients overflowed; step skipped, loss scale now %g", self.value)
