"""Figures of how a model scales, from the records of runs on different numbers of ranks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median, quantiles
from typing import Any

from hpckit.cli.bench.world_shapes import WorldShape
from hpckit.events.schema import Event, StepLogged
from hpckit.planner.plan_text import seconds
from hpckit.text.quantities import count, decimal

WARM_UP = 5
"""Number of first steps that are left out: some of them wait for memory, caches and compilers."""
SMOOTHED = 5
"""Number of steps over which a loss is averaged."""
EFFICIENT = 0.8
"""Share of perfect scaling that still counts as good."""
NOISE = 0.05
"""Share by which efficiency may exceed 1 beside the spread of the step times."""
LATE = 0.5
"""Share of the rate of the fastest model below which the links do not limit another one."""


@dataclass(frozen=True)
class ScalingPoint:
    """The figures of a model on one number of ranks."""

    model: str
    world: WorldShape
    global_batch: int
    step_s: float
    """Median seconds of a step."""
    tokens_per_s: float | None
    communication: float | None
    """Share of traced steps in which only collectives ran; None: none was traced."""
    data_wait: float
    """Share of the time spent waiting for data."""
    uncertainty: float = 0.0
    """Standard error of the median step time, as a share of it."""
    threads: int | None = None
    """CPU threads of each rank; None: not known."""
    gradient_bytes: int | None = None
    """Bytes of the gradients that the ranks exchange in a step; None: not known."""
    curve: tuple[tuple[float, float], ...] = ()
    """Seconds of training and the loss, averaged over the last `SMOOTHED` steps."""

    @property
    def communication_s(self) -> float | None:
        """Seconds of a step in which only collectives ran; None: not known."""
        return None if self.communication is None else self.communication * self.step_s

    @property
    def samples_per_s(self) -> float:
        return self.global_batch / self.step_s

    def efficiency(self, first: ScalingPoint) -> float:
        """Return the samples per second of a rank, divided by those of a rank of `first`."""
        mine, its = (one.samples_per_s / one.world.ranks for one in (self, first))
        return mine / its


def point(
    model: str,
    world: WorldShape,
    global_batch: int,
    events: Iterable[Event],
    threads: int | None = None,
    gradient_bytes: int | None = None,
) -> ScalingPoint:
    """Return the figures of a run that reached its end.

    Args:
        threads: CPU threads of each rank.
        gradient_bytes: bytes of all gradients of the model.

    Raises:
        ValueError: too few of its steps were recorded.
    """
    every = [e for e in events if isinstance(e, StepLogged)]
    steps = [e for e in every if e.step > WARM_UP]
    plain = [e for e in steps if e.traced_step_s is None]
    if not plain:
        raise ValueError(f"no step after the first {WARM_UP} was recorded")
    step_s = median(e.step_s for e in plain)
    tokens = [e.tokens_per_s * e.step_s for e in plain if e.tokens_per_s]
    shares = [
        (e.communication_exposed_s or 0.0) / e.traced_step_s for e in steps if e.traced_step_s
    ]
    waits = [(e.data_wait_s or 0.0) / e.step_s for e in plain]
    return ScalingPoint(
        model=model,
        world=world,
        global_batch=global_batch,
        step_s=step_s,
        tokens_per_s=mean(tokens) / step_s if tokens else None,
        communication=mean(shares) if shares else (0.0 if world.ranks == 1 else None),
        data_wait=mean(waits),
        uncertainty=_uncertainty([e.step_s for e in plain]),
        threads=threads,
        gradient_bytes=gradient_bytes,
        curve=_curve(every, step_s),
    )


def _curve(steps: Sequence[StepLogged], step_s: float) -> tuple[tuple[float, float], ...]:
    """Return the smoothed loss by the seconds of training, in which each step counts as one of
    `step_s` seconds, so that neither the start nor a trace is in it."""
    losses = [(e.step * step_s, e.loss) for e in steps if e.loss is not None]
    return tuple(
        (losses[at][0], mean(loss for _, loss in losses[at - SMOOTHED + 1 : at + 1]))
        for at in range(SMOOTHED - 1, len(losses))
    )


def common_target(points: Sequence[ScalingPoint]) -> float | None:
    """Return the lowest loss that all runs of a model have reached. None: a loss is not known."""
    lowest = [min((loss for _, loss in one.curve), default=None) for one in points]
    known = [one for one in lowest if one is not None]
    return max(known) if known and len(known) == len(lowest) else None


def seconds_to(one: ScalingPoint, target: float) -> float | None:
    """Return the seconds of training after which the loss is at most `target`; None: it is not."""
    return next((spent_s for spent_s, loss in one.curve if loss <= target), None)


def _uncertainty(times: Sequence[float]) -> float:
    """Return the standard error of the median of `times` as a share of it, by the quartiles, which
    single slow steps do not move."""
    if len(times) < 2:
        return 0.0
    low, middle, high = quantiles(times, n=4)
    return 1.25 * (high - low) / 1.35 / math.sqrt(len(times)) / middle


def doubt(points: Sequence[ScalingPoint]) -> str | None:
    """Return why the efficiencies of a model cannot be trusted, or None. A rank cannot do more in a
    larger world than alone, so the smallest world was measured too slow if one seems to."""
    first = points[0]
    best = max(points, key=lambda one: one.efficiency(first))
    noise = NOISE + 2 * math.hypot(first.uncertainty, best.uncertainty)
    if (share := best.efficiency(first)) <= 1 + noise:
        return None
    threads = "" if first.threads is None else f" with {count(first.threads, 'thread')} each"
    return (
        f"efficiency is not given: a rank of {best.world.ranks} would do {share:,.0%} of what one "
        f"of {first.world.ranks} does{threads}, and cannot do more than 100% beyond noise "
        f"({noise:.0%}), so {first.world} was measured too slow; free the machine of other work "
        "and repeat it with more --steps, or leave that world out of --worlds"
    )


def by_model(points: Sequence[ScalingPoint]) -> dict[str, list[ScalingPoint]]:
    """Return the points of each model, by ascending number of ranks."""
    found: dict[str, list[ScalingPoint]] = {}
    for one in sorted(points, key=lambda one: one.world.ranks):
        found.setdefault(one.model, []).append(one)
    return {model: found[model] for model in dict.fromkeys(one.model for one in points)}


def conclusion(points: Sequence[ScalingPoint]) -> str:
    """Describe up to how many ranks one model scales well, and from how many on communication
    dominates."""
    first, last = points[0], points[-1]
    if first is last:
        return f"only {_ranks(first)}: nothing to compare"
    sentences = [doubt(points) or _reach(points), _cross_over(points)]
    fastest = max(points, key=lambda one: one.samples_per_s)
    if fastest is not last:
        sentences.append(f"slower on {_ranks(last)} than on {fastest.world.ranks}")
    return "; ".join(sentences)


def _reach(points: Sequence[ScalingPoint]) -> str:
    good = points[0]
    for one in points[1:]:
        if one.efficiency(points[0]) < EFFICIENT:
            break
        good = one
    if good is points[0]:
        return f"below {EFFICIENT:.0%} of perfect from {_ranks(points[1])} on"
    return f"at {EFFICIENT:.0%} of perfect or more up to {_ranks(good)}"


def _cross_over(points: Sequence[ScalingPoint]) -> str:
    heavy = [one for one in points if one.communication is not None and one.communication > 0.5]
    if heavy:
        return f"communication takes more than half of a step from {_ranks(heavy[0])} on"
    known = [one for one in points[1:] if one.communication is not None]
    if not known:
        return "no step of several ranks was traced: --steps is too small"
    return f"communication stays below half of a step up to {_ranks(known[-1])}"


def explain(model: str, found: Mapping[str, Sequence[ScalingPoint]]) -> str | None:
    """Describe why communication takes the time that it takes, where it takes most. None: nothing
    is known of it.

    The models are compared on the same ranks: if another one moves its bytes much faster, the links
    are not what limits this one.

    Args:
        found: the points of all models.
    """
    known = [one for one in found[model] if one.world.ranks > 1 and one.communication_s]
    if not known:
        return None
    one = max(known, key=lambda point: point.communication or 0.0)
    waits_s = one.communication_s or 0.0
    text = (
        f"on {_ranks(one)}, a rank computes for {seconds(one.step_s - waits_s)} of a step and "
        f"waits {seconds(waits_s)} for others"
    )
    if one.gradient_bytes is None:
        return text
    rate = one.gradient_bytes / waits_s
    text += f", for {decimal(one.gradient_bytes)} of gradients ({decimal(rate, 'B/s')})"
    rates = list(_rates_on(one.world, found))
    best = max(rates, default=rate)
    if rate < LATE * best:
        return (
            f"{text}; another model moves {best / rate:.1f} times as many bytes per second on the "
            "same ranks, so this one waits for ranks that are late and for the start of "
            "collectives, not for the links: give each rank more work (train.micro_batch)"
        )
    if len(rates) == 1:
        return (
            f"{text}; measure a model of another size, too (--models): its rate on the same ranks "
            "shows whether the links are the limit, or ranks that are late"
        )
    return (
        f"{text}, which is the fastest of the measured models on these ranks, so the links, or the "
        "cores that copy for them, are the limit: exchange less often (a larger batch), or overlap "
        "more"
    )


def _rates_on(world: WorldShape, found: Mapping[str, Sequence[ScalingPoint]]) -> Iterator[float]:
    for own in found.values():
        for one in own:
            if one.world == world and one.communication_s and one.gradient_bytes:
                yield one.gradient_bytes / one.communication_s


def _ranks(one: ScalingPoint) -> str:
    return count(one.world.ranks, "rank")


def trusted_efficiency(one: ScalingPoint, points: Sequence[ScalingPoint]) -> float | None:
    """Return the efficiency of one of a model's points; None: it cannot be trusted (`doubt`)."""
    first = points[0]
    return None if one is not first and doubt(points) else one.efficiency(first)


def records(points: Sequence[ScalingPoint], target: float | None = None) -> list[dict[str, Any]]:
    """Return the figures for programs.

    Args:
        target: a loss to reach; None: of each model the lowest one that all its runs have reached.
    """
    found = []
    for own in by_model(points).values():
        wanted = common_target(own) if target is None else target
        for one in own:
            found.append(
                {
                    **asdict(one),
                    "ranks": one.world.ranks,
                    "samples_per_s": one.samples_per_s,
                    "efficiency": trusted_efficiency(one, own),
                    "communication_s": one.communication_s,
                    "target_loss": wanted,
                    "target_s": None if wanted is None else seconds_to(one, wanted),
                }
            )
    return found
