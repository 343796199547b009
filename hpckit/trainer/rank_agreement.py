"""Agreement of all ranks on requests (save or leave), without blocking a step."""

from __future__ import annotations

import torch.distributed as dist

from checkpointing.ranks.lagged_agreement import LaggedMax
from hpckit.ipc.heartbeat_table import WorkerRequest

PACE_S = 0.05
"""Least seconds between two exchanges where steps are shorter than that. A request is answered
after at most twice this time; each exchange costs a rank about 0.1 ms."""
CLOCK_S = 0.5
"""Least seconds between two exchanges on whether it is time to save by the clock: a save is late by
at most twice this time."""


class Agreement:
    """The strongest request that any rank has seen, which is the same on every rank at the same
    step.

    What a rank contributes to one exchange is answered at the next. So a node that learns of a
    preemption earlier than others never leaves a collective alone.
    """

    def __init__(self) -> None:
        self._strongest: LaggedMax | None = None
        self._every = self._every_by_clock = 1
        if dist.get_world_size() > 1:
            group = dist.new_group(backend="gloo")
            assert group is not None
            self._strongest = LaggedMax(group)

    def exchange(self, step: int, seen: WorkerRequest) -> WorkerRequest:
        """Contribute what this rank has seen after `step`; returns what all ranks contributed the
        time before. With step 0, between steps, the exchange is never skipped."""
        if self._strongest is None:
            return seen
        if step % self._every:
            return WorkerRequest.NONE
        agreed = WorkerRequest(self._strongest.collect())
        self._strongest.say(int(seen))
        return agreed

    def pace(self, step_s: float) -> None:
        """Set the duration of a step, which has to be the same number on every rank after the same
        step."""
        self._every = steps_between(step_s)
        self._every_by_clock = steps_between(step_s, CLOCK_S)

    def is_time(self, step: int) -> bool:
        """Whether the clock is checked after `step`, the same on all ranks."""
        return self._strongest is None or step % self._every_by_clock == 0

    def close(self) -> None:
        """Complete the exchange that is still pending, so that no rank is left waiting."""
        if self._strongest is not None:
            self._strongest.collect()


def steps_between(step_s: float, pace_s: float = PACE_S) -> int:
    """Number of steps of this many seconds from one exchange to the next."""
    return max(1, int(pace_s / step_s)) if step_s > 0 else 1
