"""Sums up what torch's profiler has recorded, by operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpckit.torch_internals import DeviceType
from hpckit.trainer.measurement.cost_report import OperationCost
from hpckit.trainer.measurement.operation_counter import OperationCount

COMPILED = "compiled blocks"
"""The name of the code that torch.compile has made, which consists of fused operations."""
_COMPILED_CALL, _FUSED = "CompiledFxGraph", "fused operations"
_US = 1e-6


@dataclass
class _Times:
    calls: int = 0
    cpu_s: float = 0.0
    on_device: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by kernel of a GPU."""
    on_cpu: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by innermost operation."""


def operation_costs(
    events: Iterable[Any], steps: int, counts: Mapping[str, OperationCount]
) -> tuple[OperationCost, ...]:
    """Return the operations of a step, the one with the most time first.

    Args:
        events: of `torch.profiler.profile.events`.
        steps: number of steps that were profiled.
        counts: of one step, by operation; empty: nothing was counted.
    """
    found: defaultdict[str, _Times] = defaultdict(_Times)
    for event in events:
        if event.cpu_parent is None and event.device_type == DeviceType.CPU:
            _collect(event, counts, found)
    is_gpu = any(times.on_device for times in found.values())
    costs = [_cost(name, times, steps, counts.get(name), is_gpu) for name, times in found.items()]
    return tuple(sorted(costs, key=lambda cost: -cost.seconds))


def _collect(
    event: Any, counts: Mapping[str, OperationCount], found: defaultdict[str, _Times]
) -> None:
    """Add the outermost operations in an event that were counted; where nothing was counted, the
    outermost ones of torch. What is between them, such as Python code, is left out."""
    name = event.name
    is_operation = "::" in name and not name.startswith("autograd::")
    is_outermost = name in counts or not counts or not event.cpu_children
    if is_operation and is_outermost:
        times = found[name]
        times.calls += 1
        times.cpu_s += _US * event.cpu_time_total
        for one in _all_below(event):
            _add_kernels(times, one)
        return
    if _COMPILED_CALL in name:
        times = found[COMPILED]
        times.calls += 1
        times.cpu_s += _US * event.self_cpu_time_total
        times.on_cpu[_FUSED] += _US * event.self_cpu_time_total
    elif name.startswith("triton_"):
        times = found[COMPILED]
        times.cpu_s += _US * event.cpu_time_total
        _add_kernels(times, event)
    for child in event.cpu_children:
        _collect(child, counts, found)


def _add_kernels(times: _Times, event: Any) -> None:
    times.on_cpu[event.name] += _US * event.self_cpu_time_total
    for kernel in event.kernels:
        times.on_device[kernel.name] += _US * kernel.duration


def _all_below(event: Any) -> Iterator[Any]:
    yield event
    for child in event.cpu_children:
        yield from _all_below(child)


def _cost(
    name: str, times: _Times, steps: int, count: OperationCount | None, is_gpu: bool
) -> OperationCost:
    parts = times.on_device or times.on_cpu
    return OperationCost(
        name=name,
        calls=times.calls / steps,
        cpu_s=times.cpu_s / steps,
        device_s=sum(times.on_device.values()) / steps if is_gpu else None,
        kernel=max(parts, key=lambda one: parts[one], default=""),
        flops=None if count is None else count.flops,
        bytes=None if count is None else count.bytes,
    )
