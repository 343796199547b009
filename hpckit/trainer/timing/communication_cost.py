"""The comparison of a traced step over all ranks, which finds the cost of communication and the
stragglers."""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from dataclasses import astuple
from statistics import mean

import torch
import torch.distributed as dist

from hpckit.events.event_log import EventLog
from hpckit.events.schema import StragglerFound, StragglerOver
from hpckit.trainer.parallel.collectives import collective_device
from hpckit.trainer.timing.step_trace import StepTrace, StepTracer
from hpckit.trainer.timing.stragglers import IN_A_ROW, Stragglers, slow_ranks

NAMES = ("traced_step_s", "communication_s", "communication_exposed_s")
"""Names in a step record of the means over ranks of the fields of `StepTrace`, if a step was traced
since the record before."""

_UNKNOWN = StepTrace(math.nan, math.nan, math.nan)


class CommunicationMonitor:
    """Traces steps of all ranks and compares the ranks."""

    def __init__(self, device: torch.device, share: float, group: int, events: EventLog) -> None:
        """Args:
        share: the share of the time that traces may take.
        group: number of this rank's group, whose ranks have the same amount of computation.
        """
        self._tracer = StepTracer(device, share if dist.get_world_size() > 1 else 0.0)
        self._group, self._events = group, events
        self._stragglers = Stragglers()
        self.begin, self.end = self._tracer.begin, self._tracer.end
        self.times = self._tracer.times

    def record(self, step: int, cost_s: float, since_s: float) -> dict[str, float]:
        """Return the fields of a step record; a rank that is a straggler writes an event.
        Collective if a step was traced.

        Args:
            cost_s, since_s: the maxima over all ranks of what `times` returns.
        """
        was_traced = self._tracer.is_taken
        self._tracer.plan(cost_s, since_s)
        if not was_traced:
            return {}
        traced, groups = _gather(self._tracer.take() or _UNKNOWN, self._group)
        self._judge(step, traced, groups)
        return means(traced)

    def _judge(self, step: int, traced: Sequence[StepTrace], groups: Sequence[int]) -> None:
        slow = slow_ranks([one.own_s for one in traced], groups)
        new, over = self._stragglers.judge(slow)
        rank, host = dist.get_rank(), socket.gethostname()
        for slow_rank in new:
            if slow_rank.rank == rank:
                z, excess = slow_rank.z, slow_rank.excess
                self._events.emit(
                    StragglerFound(step=step, host=host, z=z, excess=excess, traces=IN_A_ROW)
                )
        if rank in over:
            self._events.emit(StragglerOver(step=step, host=host))


def means(traced: Sequence[StepTrace]) -> dict[str, float]:
    """Return means over the ranks that could trace the step; empty if none could."""
    known = [one for one in traced if not math.isnan(one.step_s)]
    if not known:
        return {}
    return dict(zip(NAMES, map(mean, zip(*map(astuple, known), strict=True)), strict=True))


def _gather(trace: StepTrace, group: int) -> tuple[list[StepTrace], list[int]]:
    """Return the traces and the groups of all ranks. Collective."""
    own = torch.tensor([*astuple(trace), group], dtype=torch.float64, device=collective_device())
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    numbers = [row.tolist() for row in rows]
    return [StepTrace(*row[:-1]) for row in numbers], [int(row[-1]) for row in numbers]
