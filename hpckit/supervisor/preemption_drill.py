"""Scheduled preemption drills: the supervisor sends itself the signal that Slurm would send."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence

log = logging.getLogger(__name__)


class PreemptionDrill:
    """Preempts the run once at each of the given steps."""

    def __init__(self, preempt_at: Sequence[int], begun_at: int) -> None:
        """`begun_at` is the step that the run has already reached; drills at earlier steps are
        skipped."""
        self._left = [step for step in preempt_at if step > begun_at]

    @property
    def is_to_come(self) -> bool:
        """Whether a drill is still to come."""
        return bool(self._left)

    def at_step(self, step: int) -> None:
        """Sends the signal that is due after the run has finished `step` steps."""
        if self._left and step >= self._left[0]:
            due = self._left.pop(0)
            log.info("drill: SIGUSR2 at step %d", due)
            os.kill(os.getpid(), signal.SIGUSR2)
