"""Agreement of all ranks on what is asked of them, without making a step wait."""

from __future__ import annotations

import torch.distributed as dist

from checkpointing.ranks.lagged_agreement import LaggedMax
from hpckit.ipc.heartbeat_table import WorkerRequest

PACE_S = 0.05
"""Where steps are shorter than this, ranks exchange what they have seen only so often: a request
is answered by twice that at the latest, and each exchange costs a rank some 0.1 ms."""
CLOCK_S = 0.5
"""Likewise on whether it is time to save by the clock: a save is by twice that late at most."""


class Agreement:
    """The strongest request that any rank has seen, the same on every rank at the same step.

    What a rank says at one exchange is answered at the next. So a node that hears of a preemption
    earlier than others never leaves a collective alone.
    """

    def __init__(self) -> None:
        self._strongest: LaggedMax | None = None
        self._every = self._every_by_clock = 1
        if dist.get_world_size() > 1:
            group = dist.new_group(backend="gloo")
            assert group is not None
            self._strongest = LaggedMax(group)

    def exchange(self, step: int, seen: WorkerRequest) -> WorkerRequest:
        """Say after `step` what this rank has seen; returns what all had said the time before. With
        step 0, between steps, it is never passed over."""
        if self._strongest is None:
            return seen
        if step % self._every:
            return WorkerRequest.NONE
        agreed = WorkerRequest(self._strongest.collect())
        self._strongest.say(int(seen))
        return agreed

    def pace(self, step_s: float) -> None:
        """A step takes so long: every rank has to say the same number after the same step."""
        self._every = steps_between(step_s)
        self._every_by_clock = steps_between(step_s, CLOCK_S)

    def is_time(self, step: int) -> bool:
        """Whether the clock is looked at after `step`, on all ranks alike."""
        return self._strongest is None or step % self._every_by_clock == 0

    def close(self) -> None:
        """Take part in what is still under way, so that no rank is left waiting."""
        if self._strongest is not None:
            self._strongest.collect()


def steps_between(step_s: float, pace_s: float = PACE_S) -> int:
    """Steps of this many seconds from one exchange to the next."""
    return max(1, int(pace_s / step_s)) if step_s > 0 else 1
