"""The comparison of a traced step over all ranks, which finds the cost of communication and the
stragglers."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import mean

import torch
import torch.distributed as dist

from hpckit.events.event_log import EventLog
from hpckit.events.schema import StragglerCost, StragglerFound, StragglerOver
from hpckit.events.step_phases import PARTS
from hpckit.trainer.parallel.collectives import collective_device, gather_hosts
from hpckit.trainer.timing.step_phases import StepPhases
from hpckit.trainer.timing.step_trace import StepTrace, StepTracer
from hpckit.trainer.timing.straggler_cost import WINDOW, RankPlace, RankTime, what_if
from hpckit.trainer.timing.stragglers import IN_A_ROW, Stragglers, slow_ranks

NAMES = ("traced_step_s", "communication_s", "communication_exposed_s")
"""Names in a step record of the means over ranks of the fields of `StepTrace`, if a step was traced
since the record before."""

_UNKNOWN = StepTrace(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class _TracedRank:
    """A traced step of one rank, as all ranks know it."""

    trace: StepTrace
    phases: tuple[float, ...]
    """Seconds of each of `PARTS`."""
    place: RankPlace

    @property
    def time(self) -> RankTime:
        phases = dict(zip(PARTS, self.phases, strict=True))
        return RankTime(self.trace.step_s, self.trace.own_s, phases)


class CommunicationMonitor:
    """Traces steps of all ranks and compares the ranks."""

    def __init__(
        self,
        device: torch.device,
        share: float,
        place: RankPlace,
        phases: StepPhases,
        events: EventLog,
    ) -> None:
        """Args:
        share: the share of the time that traces may take.
        place: the node of this rank, and its group, whose ranks have the same amount of
            computation.
        phases: the step phases of this rank.
        """
        self._tracer = StepTracer(device, share if dist.get_world_size() > 1 else 0.0)
        self._place, self._phases, self._events = place, phases, events
        self._stragglers = Stragglers()
        self._before: list[float] = []  # seconds of the phases before the traced step
        self._spent = [math.nan] * len(PARTS)  # those of the traced step
        self._window: list[list[_TracedRank]] = []
        self._window_begun_s = time.monotonic()
        self._hosts: list[str] | None = None  # by rank, once a step was traced
        self.times = self._tracer.times

    def begin(self) -> None:
        """Begin a step."""
        self._tracer.begin()
        if self._tracer.is_tracing:
            self._before = self._phases.read()

    def end(self) -> None:
        """End the step."""
        if self._tracer.is_tracing:
            spent = zip(self._phases.read(), self._before, strict=True)
            self._spent = [now - before for now, before in spent]
        self._tracer.end()

    def record(self, step: int, cost_s: float, since_s: float) -> dict[str, float]:
        """Return the fields of a step record; a rank that is a straggler writes an event, and rank
        0 writes one for each window of traced steps. Collective if a step was traced.

        Args:
            cost_s, since_s: the maxima over all ranks of what `times` returns.
        """
        was_traced = self._tracer.is_taken
        self._tracer.plan(cost_s, since_s)
        if not was_traced:
            return {}
        traced = self._gather(self._tracer.take() or _UNKNOWN)
        self._judge(step, traced)
        if not all(math.isnan(one.trace.step_s) for one in traced):  # of a step that is profiled
            self._window.append(traced)
        if len(self._window) == WINDOW:
            self._end_window(step)
        return means([one.trace for one in traced])

    def _judge(self, step: int, traced: Sequence[_TracedRank]) -> None:
        groups = [one.place.group for one in traced]
        slow = slow_ranks([one.trace.own_s for one in traced], groups)
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

    def _end_window(self, step: int) -> None:
        """Have rank 0 write what the stragglers of the window have cost."""
        window, self._window = self._window, []
        begun_s, self._window_begun_s = self._window_begun_s, time.monotonic()
        if dist.get_rank() != 0:
            return
        found = what_if(
            [[rank.time for rank in step] for step in window], [rank.place for rank in window[0]]
        )
        if found is None:
            return
        assert self._hosts is not None
        self._events.emit(
            StragglerCost(
                step=step,
                traces=len(window),
                seconds=self._window_begun_s - begun_s,
                step_s=found.step_s,
                share=found.share,
                spread=found.spread,
                collectives=found.collectives,
                nodes=[one.node for one in found.slow],
                ranks=[one.rank for one in found.slow],
                hosts=[self._hosts[one.rank] for one in found.slow],
                excesses=[one.excess for one in found.slow],
                phases=[one.phase for one in found.slow],
            )
        )

    def _gather(self, trace: StepTrace) -> list[_TracedRank]:
        """Return the traced step of all ranks. Collective."""
        if self._hosts is None:
            self._hosts = gather_hosts()
        place = (self._place.node, self._place.group)
        values = [*astuple(trace), *self._spent, *place]
        own = torch.tensor(values, dtype=torch.float64, device=collective_device())
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, own)
        return [_traced_rank(row.tolist()) for row in rows]


def means(traced: Sequence[StepTrace]) -> dict[str, float]:
    """Return means over the ranks that could trace the step; empty if none could."""
    known = [one for one in traced if not math.isnan(one.step_s)]
    if not known:
        return {}
    return dict(zip(NAMES, map(mean, zip(*map(astuple, known), strict=True)), strict=True))


def _traced_rank(numbers: Sequence[float]) -> _TracedRank:
    trace, phases, (node, group) = numbers[:3], numbers[3:-2], numbers[-2:]
    return _TracedRank(StepTrace(*trace), tuple(phases), RankPlace(int(node), int(group)))
