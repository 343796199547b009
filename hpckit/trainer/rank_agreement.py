"""The agreement of all ranks on requests (save or leave), for which no step waits."""

from __future__ import annotations

import torch.distributed as dist

from checkpointing.ranks.lagged_agreement import LaggedMax
from checkpointing.ranks.rank_group import open_tree
from checkpointing.ranks.rank_tree import RankTree
from hpckit.ipc.heartbeat_table import WorkerRequest

PACE_S = 0.05
"""Least seconds between two exchanges where steps are shorter than that. A request takes effect
after at most twice this time; each exchange costs a rank about 0.1 ms."""
CLOCK_S = 0.5
"""Least seconds between two exchanges about a save that is due by the clock. Such a save is late by
at most twice this time."""


class RankAgreement:
    """The strongest request that any rank has seen, which is the same on every rank at the same
    step.

    What a rank contributes to one exchange is the answer of the next one. A rank whose node learns
    of a preemption earlier than others therefore never leaves the others waiting in a collective.
    """

    def __init__(self) -> None:
        self._tree: RankTree | None = None
        self._strongest: LaggedMax | None = None
        self._steps_between = self._steps_between_clock_checks = 1
        self.is_leaving = False
        """Whether all ranks have agreed to leave."""
        if dist.get_world_size() > 1:
            self._tree = open_tree()
            self._strongest = LaggedMax(self._tree)

    def exchange(self, step: int, seen: WorkerRequest) -> WorkerRequest:
        """Contribute the request that this rank has seen after `step`, and return what all ranks
        contributed to the exchange before.

        Most short steps skip the exchange and return NONE. With step 0, as between two steps, it is
        never skipped.
        """
        if self._strongest is None:
            agreed = seen
        elif step % self._steps_between:
            return WorkerRequest.NONE
        else:
            agreed = WorkerRequest(self._strongest.collect())
            self._strongest.say(int(seen))
        self.is_leaving = self.is_leaving or agreed is not WorkerRequest.NONE
        return agreed

    def set_step_duration(self, step_s: float) -> None:
        """Set the seconds that a step takes, from which the number of skipped exchanges follows.
        Every rank has to pass the same number after the same step."""
        self._steps_between = steps_between(step_s)
        self._steps_between_clock_checks = steps_between(step_s, CLOCK_S)

    def is_clock_check_due(self, step: int) -> bool:
        """Whether ranks exchange after `step` whether it is time to save; the same on all ranks."""
        return self._strongest is None or step % self._steps_between_clock_checks == 0

    def close(self) -> None:
        """Complete the pending exchange, so that no rank is left waiting for it. Collective."""
        if self._strongest is not None:
            self._strongest.collect()
        if self._tree is not None:
            self._tree.close()


def steps_between(step_s: float, pace_s: float = PACE_S) -> int:
    """Return the number of steps of `step_s` seconds from one exchange to the next."""
    return max(1, int(pace_s / step_s)) if step_s > 0 else 1
