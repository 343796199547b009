"""What ranks find together from a traced step: the cost of communication and the stragglers."""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from dataclasses import astuple
from statistics import mean

import torch
import torch.distributed as dist

from hpckit.events.event_log import EventLog
from hpckit.trainer.parallel.collectives import meeting_device
from hpckit.trainer.timing.step_trace import StepTrace, StepTracer
from hpckit.trainer.timing.stragglers import IN_A_ROW, Stragglers, slow_ranks

NAMES = ("traced_step_s", "communication_s", "communication_exposed_s")
"""Names in a step record of means over ranks of a step that was traced since the record before, as
of `StepTrace`."""

_UNKNOWN = StepTrace(math.nan, math.nan, math.nan)


class CommunicationMonitor:
    """Traces steps of all ranks and compares the ranks."""

    def __init__(self, device: torch.device, share: float, group: int, events: EventLog) -> None:
        """Args:
        share: share of the time that traces may take.
        group: number of the group of ranks that have as much to do as this one.
        """
        self._tracer = StepTracer(device, share if dist.get_world_size() > 1 else 0.0)
        self._group, self._events = group, events
        self._stragglers = Stragglers()
        self.begin, self.end = self._tracer.begin, self._tracer.end
        self.times = self._tracer.times

    def record(self, step: int, cost_s: float, since_s: float) -> dict[str, float]:
        """Return the fields of a step record; a rank that is slow writes its own event.

        A collective if a step was traced. `cost_s`, `since_s`: the maxima of `times` over all
        ranks.
        """
        was_traced = self._tracer.is_taken
        self._tracer.plan(cost_s, since_s)
        if not was_traced:
            return {}
        traced, groups = _gathered(self._tracer.taken() or _UNKNOWN, self._group)
        self._judge(step, traced, groups)
        return means(traced)

    def _judge(self, step: int, traced: Sequence[StepTrace], groups: Sequence[int]) -> None:
        slow = slow_ranks([one.own_s for one in traced], groups)
        new, over = self._stragglers.judge(slow)
        rank = dist.get_rank()
        for one in new:
            if one.rank == rank:
                self._emit("straggler", step, z=one.z, excess=one.excess, traces=IN_A_ROW)
        if rank in over:
            self._emit("straggler_over", step)

    def _emit(self, kind: str, step: int, **about: float) -> None:
        self._events.emit(kind, step=step, host=socket.gethostname(), **about)


def means(traced: Sequence[StepTrace]) -> dict[str, float]:
    """Return means over the ranks that could trace the step; empty if none could."""
    known = [one for one in traced if not math.isnan(one.step_s)]
    if not known:
        return {}
    return dict(zip(NAMES, map(mean, zip(*map(astuple, known), strict=True)), strict=True))


def _gathered(mine: StepTrace, group: int) -> tuple[list[StepTrace], list[int]]:
    """Gather the values of all ranks. Collective."""
    own = torch.tensor([*astuple(mine), group], dtype=torch.float64, device=meeting_device())
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    numbers = [row.tolist() for row in rows]
    return [StepTrace(*row[:-1]) for row in numbers], [int(row[-1]) for row in numbers]
