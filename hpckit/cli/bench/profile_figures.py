"""Figures of a profiled run, with or without compiled blocks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from hpckit.events.schema import Event, StepLogged
from hpckit.planner.plan_text import seconds
from hpckit.text.quantities import decimal, size
from hpckit.trainer.measurement.cost_report import (
    OperationCost,
    RooflinePoint,
    StepCosts,
    peak_of_activations,
    roofline_point,
    share_of_limit,
)

WARM_UP = 3
"""Number of first steps that are left out."""
START = 9
"""The first step that is profiled; those before it, after the warm-up, are timed."""
MOST_COSTLY = 3
FAR_BELOW = 0.1
"""Share of its limit below which an operation is slowed by something else than this limit."""
NOISE = 0.1
"""Share by which an operation may exceed the measured peak."""
_PHASES = ("data_wait", "host_to_device", "forward", "backward", "optimizer", "other")


@dataclass(frozen=True)
class ProfiledRun:
    """A run that was profiled. Its times are those of steps before the profile, which makes steps
    slower."""

    is_compiled: bool
    step_s: float
    samples_per_s: float
    phases: dict[str, float]
    """Seconds of a step by phase."""
    peak_bytes: int | None
    """Peak of torch's tensors on a GPU, or of the resident memory of the process."""
    costs: StepCosts

    @property
    def operations_s(self) -> float:
        """Seconds of a profiled step in operations."""
        return sum(one.seconds for one in self.costs.operations)


def profiled_run(events: Iterable[Event], costs: StepCosts, global_batch: int) -> ProfiledRun:
    """Return the figures of a run that reached its end.

    Raises:
        ValueError: no step before the profile was recorded.
    """
    every = [event for event in events if isinstance(event, StepLogged)]
    plain = [event for event in every if WARM_UP < event.step < costs.first_step]
    if not plain:
        raise ValueError(f"no step from {WARM_UP + 1} to {costs.first_step - 1} was recorded")
    step_s = median(event.step_s for event in plain)
    phases = {
        name: median(getattr(event, f"{name}_s") or 0.0 for event in plain) for name in _PHASES
    }
    peaks = [event.peak_memory_bytes or event.peak_rss_bytes for event in plain]
    known = [peak for peak in peaks if peak is not None]
    return ProfiledRun(
        is_compiled=costs.is_compiled,
        step_s=step_s,
        samples_per_s=global_batch / step_s,
        phases={name: seconds for name, seconds in phases.items() if seconds > 0},
        peak_bytes=round(max(known)) if known else None,
        costs=costs,
    )


def whole_step(run: ProfiledRun) -> RooflinePoint | None:
    """Return the point of all operations of a step below the roofline."""
    operations = [one for one in run.costs.operations if one.flops is not None]
    flops = sum(one.flops or 0.0 for one in operations)
    moved = sum(one.bytes or 0.0 for one in operations)
    return roofline_point(flops, moved, run.step_s, run.costs.peaks)


def bound_of(cost: OperationCost, costs: StepCosts) -> str:
    """Return what bounds an operation, in words; "" if it was not counted."""
    found = roofline_point(cost.flops, cost.bytes, cost.seconds, costs.peaks)
    share = share_of_limit(cost, costs.peaks)
    if found is None or share is None:
        return ""
    rate = decimal(found.reached, "FLOP/s") if found.is_compute_bound else _bandwidth(cost)
    return f"{found.bound}: {rate}, {share:.0%} of the measured peak"


def _bandwidth(cost: OperationCost) -> str:
    return decimal((cost.bytes or 0.0) / cost.seconds, "B/s")


def conclusions(runs: Sequence[ProfiledRun]) -> list[tuple[str, str]]:
    """Describe what was found, in named lines. The first of `runs` is the one without compiled
    blocks."""
    first = runs[0]
    costs, found = first.costs, []
    for number, one in enumerate(costs.operations[:MOST_COSTLY], start=1):
        share = one.seconds / first.operations_s if first.operations_s else 0.0
        bound = bound_of(one, costs)
        found.append(
            (
                f"operation {number}",
                f"{one.name}, {share:.0%} of the time in operations: {_times(one)}, mostly in "
                f"{one.kernel}" + (f"; bound by {bound}" if bound else ""),
            )
        )
    if (why := doubt(costs)) is not None:
        found.append(("doubt", why))
    shares = [share_of_limit(one, costs.peaks) for one in costs.operations[:MOST_COSTLY]]
    if low := [share for share in shares if share is not None and share < FAR_BELOW]:
        found.append(
            (
                "far below",
                f"{len(low)} of these reach less than {FAR_BELOW:.0%} of their limit: their calls "
                "are too small, or their kernels are not made for these shapes or this format; "
                "try a larger micro-batch, another precision or compiled blocks",
            )
        )
    if (point := whole_step(first)) is not None:
        found.append(
            (
                "step",
                f"{decimal(point.reached, 'FLOP/s')} of "
                f"{decimal(costs.peaks.flops_per_s, 'FLOP/s')}, {point.intensity:.1f} FLOP per "
                f"byte; the roofline bends at {costs.peaks.ridge:.1f}: {point.bound}-bound",
            )
        )
    if costs.layers:
        most = max(costs.layers, key=lambda layer: layer.bytes)
        found.append(
            (
                "activations",
                f"{size(peak_of_activations(costs.layers))} are kept when the backward pass of a "
                f"micro-batch begins; {most.name} keeps most, {size(most.bytes)}",
            )
        )
    found += [("compiled", _compared(first, other)) for other in runs[1:]]
    return found


def doubt(costs: StepCosts) -> str | None:
    """Return why the roofline cannot be trusted, or None. No operation computes faster than the
    device can, so the peak was measured too low if one seems to."""
    rates = {one.name: (one.flops or 0.0) / one.seconds for one in costs.operations if one.seconds}
    fastest = max(rates, key=lambda name: rates[name], default=None)
    if fastest is None or rates[fastest] <= (1 + NOISE) * costs.peaks.flops_per_s:
        return None
    return (
        f"{fastest} reaches {decimal(rates[fastest], 'FLOP/s')}, more than the "
        f"{decimal(costs.peaks.flops_per_s, 'FLOP/s')} that were measured as the peak, so other "
        "work slowed the measurement; free the machine of it and repeat"
    )


def _times(one: OperationCost) -> str:
    cpu = f"{seconds(one.cpu_s)} of CPU"
    return f"{cpu}, {seconds(one.device_s)} of GPU" if one.device_s else cpu


def _compared(first: ProfiledRun, other: ProfiledRun) -> str:
    factor = first.step_s / other.step_s
    times = f"{seconds(first.step_s)} to {seconds(other.step_s)}"
    speed = f"{factor:.2f} times as fast" if factor >= 1 else f"{1 / factor:.2f} times as slow"
    return f"compiled blocks change a step from {times}: {speed}"


def record(run: ProfiledRun) -> dict[str, Any]:
    """Return the figures for programs."""
    point, costs = whole_step(run), asdict(run.costs)
    for one, given in zip(costs["operations"], run.costs.operations, strict=True):
        found = roofline_point(given.flops, given.bytes, given.seconds, run.costs.peaks)
        one["bound"] = None if found is None else found.bound
        one["share_of_peak"] = share_of_limit(given, run.costs.peaks)
    return {
        "compiled": run.is_compiled,
        "step_s": run.step_s,
        "samples_per_s": run.samples_per_s,
        "phases_s": run.phases,
        "peak_bytes": run.peak_bytes,
        "activation_bytes": peak_of_activations(run.costs.layers) or None,
        "step": None if point is None else {**asdict(point), "bound": point.bound},
        **costs,
    }
