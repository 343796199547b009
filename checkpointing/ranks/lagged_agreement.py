"""Agreements among all ranks for which no rank waits: each answer is one call late."""

from __future__ import annotations

import torch
import torch.distributed as dist


class LaggedMax:
    """The largest number that any rank sent at the call before; 0 at the first call.

    The reduction runs on gloo's threads between two calls, over the CPU, so that no step waits for
    it. Every rank must call equally often.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._pending: tuple[dist.Work, torch.Tensor] | None = None

    @property
    def pending(self) -> bool:
        """Whether a number was sent whose answer was not collected yet."""
        return self._pending is not None

    def collect(self) -> int:
        """Returns the answer to the number sent last, and forgets it; 0 if none was sent."""
        if self._pending is None:
            return 0
        work, said = self._pending
        work.wait()
        self._pending = None
        return int(said.item())

    def say(self, value: int) -> None:
        """Send this rank's number; the answer to the one before must have been collected."""
        said = torch.tensor([value], dtype=torch.int32)
        work = dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None
        self._pending = (work, said)


class LaggedVote:
    """Each call sends this rank's vote and returns the result of the call before: True if any
    rank's vote was.

    Without a group there is no other rank, and the vote itself is the result.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._max = LaggedMax(group) if group is not None else None
        self._void = False

    def __call__(self, opinion: bool) -> bool:
        if self._max is None:
            return opinion
        answer = bool(self._max.collect()) and not self._void
        self._void = False
        # the caller acts on True, so an earlier vote for True no longer has a reason
        self._max.say(int(opinion and not answer))
        return answer

    def void(self) -> None:
        """Discard the votes sent so far: the next result is False. Every rank must call it."""
        self._void = self._max is not None and self._max.pending
