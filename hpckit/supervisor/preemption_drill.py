"""Faults on a schedule: the supervisor sends itself the signals that Slurm would send."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence

log = logging.getLogger(__name__)


class PreemptionDrill:
    """Preempts once at each of the given steps."""

    def __init__(self, preempt_at: Sequence[int], begun_at: int) -> None:
        """`begun_at`: the step that the run has already reached; earlier ones are not played."""
        self._left = [step for step in preempt_at if step > begun_at]

    @property
    def is_to_come(self) -> bool:
        """Whether something is left to play."""
        return bool(self._left)

    def at_step(self, step: int) -> None:
        """The run has finished `step` steps; send what is due."""
        if self._left and step >= self._left[0]:
            due = self._left.pop(0)
            log.info("drill: SIGUSR2 at step %d", due)
            os.kill(os.getpid(), signal.SIGUSR2)
