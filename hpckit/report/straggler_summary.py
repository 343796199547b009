"""What stragglers have cost a run, and whether the eviction of a slow node has paid, as text for
people. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpckit.events.schema import (
    Event,
    RunStarted,
    StragglerCost,
    StragglerEvicted,
    StragglerEvictionResult,
    TrainingStarted,
)
from hpckit.text.quantities import count, span

PHASES = {
    "data_wait": "waiting for data",
    "host_to_device": "copies to the device",
    "compute": "forward and backward",
    "optimizer": "the optimizer",
    "checkpoint_stall": "waiting for a checkpoint",
    "certification": "checks of computations",
    "validation": "validation",
    "other": "code outside of the step phases",
}
"""The name of each step phase in a sentence."""
MOVES = 0.05
"""Share of a step that different ranks have to cost in turn to be reported."""


@dataclass(frozen=True)
class StragglerSummary:
    """The cost of stragglers over several windows of traced steps."""

    windows: int
    traces: int
    share: float
    """Mean share of a step that slow nodes have cost."""
    spread: float
    """Mean share of a step that any differences between equal ranks have cost."""
    newest: StragglerCost

    def record(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return {
            "windows": self.windows,
            "traces": self.traces,
            "share": self.share,
            "spread": self.spread,
            "newest": cost_record(self.newest),
        }


def summary_of(costs: Sequence[StragglerCost]) -> StragglerSummary | None:
    """Return the summary of these windows; None if there are none."""
    if not costs:
        return None
    seconds = sum(one.seconds for one in costs) or 1.0
    return StragglerSummary(
        windows=len(costs),
        traces=sum(one.traces for one in costs),
        share=sum(one.share * one.seconds for one in costs) / seconds,
        spread=sum(one.spread * one.seconds for one in costs) / seconds,
        newest=costs[-1],
    )


def cost_record(event: StragglerCost) -> dict[str, Any]:
    """Return the cost in a window as JSON values."""
    shares = ("share", "spread", "collectives")
    lists = ("nodes", "ranks", "hosts", "phases", "excesses")
    return {name: event[name] for name in ("step", "traces", "seconds", "step_s", *shares, *lists)}


def present_cost(events: Sequence[Event]) -> StragglerCost | None:
    """Return what the newest window of the present attempt has shown; None: nothing yet."""
    for event in reversed(events):
        if isinstance(event, StragglerCost):
            return event
        if isinstance(event, TrainingStarted | RunStarted):
            return None
    return None


def describe_cost(event: StragglerCost) -> str:
    """Describe what the slow nodes of a window cost, or that there are none."""
    if not event.ranks:
        within = f"no rank is slower than chance explains ({event.traces} traced steps)"
        if event.spread < MOVES:
            return within
        return (
            f"{within}; a step would take {event.spread:.1%} less time if all ranks were equally "
            "fast, but the slowest one changes, so it is not the fault of a node"
        )
    named = zip(event.ranks, event.hosts, event.phases, strict=False)
    each = [(f"rank {rank} on {host}", PHASES.get(phase, phase)) for rank, host, phase in named]
    where = " and ".join(one for one, _ in each)
    slow = dict.fromkeys(phase for _, phase in each)
    return (
        f"without {where} a step would take {event.share:.1%} less time; "
        f"slow there: {', '.join(slow)} ({event.traces} traced steps)"
    )


def describe_summary(it: StragglerSummary) -> str:
    """Describe the cost of all windows, and the newest one."""
    share = f"{it.share:.1%} of the step time lost to slow nodes"
    return f"{share} ({count(it.windows, 'window')}); newest: {describe_cost(it.newest)}"


def describe_eviction(event: StragglerEvicted) -> str:
    """Describe an eviction and its reason."""
    return f"{', '.join(event.hosts)} replaced after step {event.step:,}: {event.reason}"


def describe_result(event: StragglerEvictionResult) -> str:
    """Describe whether an eviction has paid."""
    less = 1 - event.after_s / event.before_s if event.before_s else 0.0
    changed = f"{abs(less):.1%} {'less' if less >= 0 else 'more'} time"
    by_the_end = f"{span(abs(event.saved_s))} {'saved' if event.saved_s >= 0 else 'lost'}"
    word = "has paid" if event.has_paid else "has not paid"
    return (
        f"the eviction of {', '.join(event.hosts)} {word}: a step takes {changed} "
        f"({event.before_s:.3f} s before, {event.after_s:.3f} s after), the restart took "
        f"{event.restart_s:.0f} s; {by_the_end} by the last step"
    )
