"""Agreement of all ranks on what is asked of them, without making a step wait."""

from __future__ import annotations

import torch.distributed as dist

from checkpointing.agreement import LaggedMax
from hpckit.run.board import Request


class Agreement:
    """The strongest request that any rank has seen, the same on every rank at the same step.

    What a rank says at one step boundary is answered at the next. So a node that hears of a
    preemption earlier than others never leaves a collective alone.
    """

    def __init__(self) -> None:
        group = dist.new_group(backend="gloo")
        assert group is not None
        self._strongest = LaggedMax(group)

    def exchange(self, seen: Request) -> Request:
        """Say what this rank has seen; returns what all had said at the call before."""
        agreed = Request(self._strongest.collect())
        self._strongest.say(int(seen))
        return agreed

    def close(self) -> None:
        """Take part in what is still under way, so that no rank is left waiting."""
        self._strongest.collect()
