"""Yes or no, the same on every rank, without anybody waiting for it."""

from __future__ import annotations

import torch
import torch.distributed as dist


class LaggedVote:
    """Each call sends this rank's opinion and answers with the one before: yes if any rank's was.

    By the next call the exchange is over, so no step waits for it. Every rank has to call equally
    often. Without a group there is nobody to wait for, and the opinion is the answer.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._pending: tuple[dist.Work, torch.Tensor] | None = None
        self._void = False

    def __call__(self, opinion: bool) -> bool:
        if self._group is None:
            return opinion
        answer = self._collect() and not self._void
        self._void = False
        # after a yes the caller acts, so the reason for saying yes again is gone
        self._send(opinion and not answer)
        return answer

    def void(self) -> None:
        """What was sent so far is out of date: answer no next time. Every rank has to call it."""
        self._void = self._pending is not None

    def _collect(self) -> bool:
        if self._pending is None:
            return False
        work, ballot = self._pending
        work.wait()
        return bool(ballot.item())

    def _send(self, opinion: bool) -> None:
        ballot = torch.tensor([int(opinion)], dtype=torch.int32)
        work = dist.all_reduce(ballot, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None
        self._pending = (work, ballot)
