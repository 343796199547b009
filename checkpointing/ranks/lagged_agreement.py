"""One answer for all ranks, without anybody waiting for it."""

from __future__ import annotations

import torch
import torch.distributed as dist


class LaggedMax:
    """The largest number that any rank said at the call before; 0 at the first call.

    The reduction runs on gloo's threads between two calls, over the CPU, so that no step waits
    for it. Every rank has to call equally often.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._pending: tuple[dist.Work, torch.Tensor] | None = None

    @property
    def pending(self) -> bool:
        """Whether something was said that is not answered yet."""
        return self._pending is not None

    def collect(self) -> int:
        """The answer to what was said last, which is then over; 0 where nothing was."""
        if self._pending is None:
            return 0
        work, said = self._pending
        work.wait()
        self._pending = None
        return int(said.item())

    def say(self, value: int) -> None:
        """Send this rank's number; what was said before must have been collected."""
        said = torch.tensor([value], dtype=torch.int32)
        work = dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None
        self._pending = (work, said)


class LaggedVote:
    """Each call sends this rank's opinion and answers with the one before: yes if any rank's was.

    Without a group there is nobody to wait for, and the opinion is the answer.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._max = LaggedMax(group) if group is not None else None
        self._void = False

    def __call__(self, opinion: bool) -> bool:
        if self._max is None:
            return opinion
        answer = bool(self._max.collect()) and not self._void
        self._void = False
        # after a yes the caller acts, so the reason for saying yes again is gone
        self._max.say(int(opinion and not answer))
        return answer

    def void(self) -> None:
        """What was sent so far is out of date: answer no next time. Every rank has to call it."""
        self._void = self._max is not None and self._max.pending
