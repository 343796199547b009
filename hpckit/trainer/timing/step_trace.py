"""Sampled traces of steps, which show how long collectives ran, and how long nothing was computed
meanwhile.

A clock around the collectives cannot measure this, since most of them are queued and wait for one
another beside the computation. torch's profiler can, but costs too much for every step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from hpckit.torch_internals import DeviceType, is_profiler_enabled
from hpckit.trainer.device.device_queue import synchronize

log = logging.getLogger(__name__)

FIRST_COST_S = 0.2
"""Seconds that the first trace is assumed to cost."""
Span = tuple[int, int]
"""The begin and the end of an interval, in any unit."""


@dataclass(frozen=True)
class StepTrace:
    """The times of a traced step on one rank, in seconds."""

    step_s: float
    communication_s: float
    """Time in which collectives ran or waited for other ranks."""
    exposed_s: float
    """The part of `communication_s` in which nothing was computed."""

    @property
    def own_s(self) -> float:
        """Seconds in which this rank did not only wait for others."""
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
        """`share`: the share of the time that traces may take; with 0, no step is traced."""
        self._device, self._share = device, share
        self._profile: profile | None = None
        self._begun_s = 0.0
        self._is_due = False
        self._since_s = time.monotonic()
        self._cost_s = FIRST_COST_S
        self._traced: StepTrace | None = None
        self.is_taken = False
        """Whether all ranks were to trace a step since the last call of `plan`."""

    @property
    def is_tracing(self) -> bool:
        """Whether this rank traces the present step."""
        return self._profile is not None

    def begin(self) -> None:
        """Begin a step."""
        if not self._is_due:
            return
        self._is_due, self.is_taken = False, True
        if is_profiler_enabled():
            log.info("this step is not traced for its communication, since it is profiled already")
            return
        begun_s = time.monotonic()
        on_gpu = self._device.type == "cuda"
        self._profile = profile(
            activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
        )
        synchronize(self._device)
        self._profile.start()
        self._begun_s = time.monotonic()
        self._cost_s = self._begun_s - begun_s

    def end(self) -> None:
        """End the step."""
        if self._profile is None:
            return
        synchronize(self._device)
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

    def take(self) -> StepTrace | None:
        """Return the trace since the last call, if there is one on this rank."""
        traced, self._traced = self._traced, None
        return traced

    def times(self) -> tuple[float, float]:
        """Return the seconds that the last trace cost, and the seconds since it or since the
        start."""
        return self._cost_s, time.monotonic() - self._since_s

    def plan(self, cost_s: float, since_s: float) -> None:
        """Have the next step traced if a trace is due. All ranks have to pass the same numbers: the
        maxima over ranks of what `times` returns."""
        if self.is_taken:
            self.is_taken, self._since_s = False, time.monotonic()
        else:
            self._is_due = is_trace_due(cost_s, since_s, self._share)


def is_trace_due(cost_s: float, since_s: float, share: float) -> bool:
    """Whether a trace of `cost_s` seconds, made once every `since_s` seconds, takes at most `share`
    of the time."""
    return share > 0 and cost_s <= share * since_s


def computation_and_collectives(events: Iterable[ProfilerEvent]) -> tuple[list[Span], list[Span]]:
    """Return the spans of computation and those of collectives, in nanoseconds.

    On a GPU they are the spans of its kernels. On a CPU, computation consists of the operators that
    gloo's threads do not call, and collectives are gloo's events; Python code is neither.
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


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of the spans as ordered spans that neither touch nor overlap."""
    found: list[Span] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def length(spans: Iterable[Span]) -> int:
    """Return the length of the union of the spans."""
    return sum(end - begin for begin, end in merged(spans))


def outside(spans: Iterable[Span], others: Iterable[Span]) -> int:
    """Return the length of the union of `spans` without that of `others`."""
    covered = list(others)
    return length([*spans, *covered]) - length(covered)
