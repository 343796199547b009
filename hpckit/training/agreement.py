"""Agreement of all ranks on what is asked of them, without making a step wait."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hpckit.run.board import Request


class Agreement:
    """The strongest request that any rank has seen, the same on every rank at the same step.

    What a rank says at one step boundary is answered at the next: the reduction runs on gloo's
    threads, over the CPU, while the step between computes. So a node that hears of a preemption
    earlier than others never leaves a collective alone.
    """

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo")
        self._said = torch.zeros(1, dtype=torch.int64)
        self._pending: dist.Work | None = None

    def exchange(self, seen: Request) -> Request:
        """Say what this rank has seen; returns what all had said at the call before."""
        agreed = Request.NONE
        if self._pending is not None:
            self._pending.wait()
            agreed = Request(int(self._said.item()))
        self._said.fill_(int(seen))
        self._pending = dist.all_reduce(
            self._said, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )
        return agreed

    def close(self) -> None:
        """Take part in what is still under way, so that no rank is left waiting."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
