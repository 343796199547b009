"""Sampled traces of steps: how long collectives ran, and how long nothing was computed meanwhile.

This cannot be measured from outside: most collectives are queued, and wait for one another beside
the computation. torch's profiler sees them, but costs too much for every step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from hpckit.trainer.timing.time_intervals import Span, length, outside

log = logging.getLogger(__name__)

FIRST_COST_S = 0.2
"""Seconds that the first trace is assumed to cost."""


@dataclass(frozen=True)
class StepTrace:
    """The trace of a step of one rank, in seconds."""

    step_s: float
    communication_s: float
    """Time in which collectives ran or waited for other ranks."""
    exposed_s: float
    """The part of it in which nothing was computed."""

    @property
    def own_s(self) -> float:
        """Time in which this rank did more than wait for others."""
        return self.step_s - self.exposed_s


class ProfilerEvent(Protocol):
    """The part of the interface of an event of torch's profiler that is used here."""

    def name(self) -> str: ...
    def start_ns(self) -> int: ...
    def end_ns(self) -> int: ...
    def start_thread_id(self) -> int: ...
    def device_type(self) -> DeviceType: ...
    def is_user_annotation(self) -> bool: ...


class StepTracer:
    """Traces a step from time to time, the same one on all ranks."""

    def __init__(self, device: torch.device, share: float) -> None:
        """`share`: share of the time that traces may take; 0: none are made."""
        self._device, self._share = device, share
        self._profile: profile | None = None
        self._begun_s = 0.0
        self._is_due = False
        self._since_s = time.monotonic()
        self._cost_s = FIRST_COST_S
        self._traced: StepTrace | None = None
        self.is_taken = False
        """Whether a step was to be traced since `plan`, on all ranks alike."""

    def begin(self) -> None:
        """Begin a step."""
        if not self._is_due:
            return
        self._is_due, self.is_taken = False, True
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            log.info("this step is not traced for its communication: it is being profiled already")
            return
        begun_s = time.monotonic()
        on_gpu = self._device.type == "cuda"
        self._profile = profile(
            activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
        )
        self._finish_queued()
        self._profile.start()
        self._begun_s = time.monotonic()
        self._cost_s = self._begun_s - begun_s

    def end(self) -> None:
        """End the step."""
        if self._profile is None:
            return
        self._finish_queued()
        ended_s = time.monotonic()
        self._profile.stop()
        profiler, self._profile = self._profile.profiler, None
        assert profiler is not None
        assert profiler.kineto_results is not None
        busy, communicating = computation_and_collectives(profiler.kineto_results.events())
        self._traced = StepTrace(
            step_s=ended_s - self._begun_s,
            communication_s=length(communicating) / 1e9,
            exposed_s=outside(communicating, busy) / 1e9,
        )
        self._cost_s += time.monotonic() - ended_s

    def taken(self) -> StepTrace | None:
        """Return the trace since the last call, if there is one on this rank."""
        traced, self._traced = self._traced, None
        return traced

    def times(self) -> tuple[float, float]:
        """Return the seconds that the last trace cost, and those since it or since the start."""
        return self._cost_s, time.monotonic() - self._since_s

    def plan(self, cost_s: float, since_s: float) -> None:
        """Trace the next step if it is time. All ranks have to pass the same numbers: the maxima
        over ranks of their `times`."""
        if self.is_taken:
            self.is_taken, self._since_s = False, time.monotonic()
        else:
            self._is_due = is_time(cost_s, since_s, self._share)

    def _finish_queued(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def is_time(cost_s: float, since_s: float, share: float) -> bool:
    """Whether a trace of this cost takes at most `share` of the time, if made once every so many
    seconds."""
    return share > 0 and cost_s <= share * since_s


def computation_and_collectives(events: Iterable[ProfilerEvent]) -> tuple[list[Span], list[Span]]:
    """Return the times of computation and of collectives, in nanoseconds.

    On a GPU these are its kernels. On the CPU these are operators, except those that gloo's threads
    call, and gloo's own events; Python in between is neither.
    """
    found = list(events)
    kernels = [
        event
        for event in found
        if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()
    ]
    if kernels:
        collectives = [event for event in kernels if event.name().startswith("nccl")]
        others = [event for event in kernels if not event.name().startswith("nccl")]
        return _spans(others), _spans(collectives)
    collectives = [event for event in found if event.name().startswith("gloo:")]
    threads = {event.start_thread_id() for event in collectives}
    operators = [event for event in found if event.name().startswith("aten::")]
    own = [event for event in operators if event.start_thread_id() not in threads]
    return _spans(own), _spans(collectives)


def _spans(events: Iterable[ProfilerEvent]) -> list[Span]:
    return [(event.start_ns(), event.end_ns()) for event in events]
