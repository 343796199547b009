"""A step traced now and then: how long collectives ran, and how long nothing else did meanwhile.

That is not to be seen from outside: most collectives are queued, and wait for one another beside
the computation. torch's profiler sees them, and costs too much for every step.
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
"""What the first trace is taken to cost, until it is known."""


@dataclass(frozen=True)
class StepTrace:
    """A step of one rank, in seconds."""

    step_s: float
    communication_s: float
    """In which collectives ran or waited for other ranks."""
    exposed_s: float
    """Of these, in which nothing was computed."""

    @property
    def own_s(self) -> float:
        """In which this rank did not just wait for others."""
        return self.step_s - self.exposed_s


class ProfilerEvent(Protocol):
    """What is needed of an event of torch's profiler."""

    def name(self) -> str: ...
    def start_ns(self) -> int: ...
    def end_ns(self) -> int: ...
    def start_thread_id(self) -> int: ...
    def device_type(self) -> DeviceType: ...
    def is_user_annotation(self) -> bool: ...


class StepTracer:
    """Traces a step from time to time, the same one on all ranks."""

    def __init__(self, device: torch.device, share: float) -> None:
        """`share`: of the time that it may take; 0: never."""
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
        """A step begins."""
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
        """It is through."""
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
        """The step that was traced since the last call, if this rank could."""
        traced, self._traced = self._traced, None
        return traced

    def times(self) -> tuple[float, float]:
        """Seconds that the last trace cost, and those since it or the beginning."""
        return self._cost_s, time.monotonic() - self._since_s

    def plan(self, cost_s: float, since_s: float) -> None:
        """Have the step to come be traced, if it is time. All ranks have to say the same numbers:
        the largest of their `times`."""
        if self.is_taken:
            self.is_taken, self._since_s = False, time.monotonic()
        else:
            self._is_due = is_time(cost_s, since_s, self._share)

    def _finish_queued(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def is_time(cost_s: float, since_s: float, share: float) -> bool:
    """Whether something of this cost takes no more than `share` of the time, once every so many
    seconds."""
    return share > 0 and cost_s <= share * since_s


def computation_and_collectives(events: Iterable[ProfilerEvent]) -> tuple[list[Span], list[Span]]:
    """When something was computed, and when collectives ran, in nanoseconds.

    On a GPU by its kernels. On the CPU by operators, but for those that gloo's threads call, and by
    what gloo says of itself; the Python in between is neither.
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
