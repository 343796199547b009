"""A plan as text: named lines and tables, the same in a terminal and in a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpckit.planner.assumptions import HOST_MEMORY_GBPS, RESTART_S
from hpckit.planner.memory.layout_recommendation import LayoutChoice
from hpckit.planner.memory.memory_footprint import MemoryUse
from hpckit.planner.run_estimate import RunEstimate
from hpckit.text.quantities import count, decimal, size, span

MOMENTS = {
    "loss": "when the backward pass begins",
    "backward": "in the backward pass of the last block",
    "reduced": "when all gradients are reduced",
    "optimizer": "during the optimizer step",
}
"""Names of the moments of a step."""


def facts(plan: RunEstimate) -> Iterator[tuple[str, str]]:
    """Return lines with their names."""
    some = "" if plan.trained == plan.parameters else f" ({large(plan.trained)} trained)"
    yield (
        "model",
        f"{large(plan.parameters)} parameters{some}, {large(plan.flops_per_token)}FLOP per "
        f"{plan.unit}; a checkpoint has {size(plan.checkpoint)}",
    )
    per_node = plan.world // plan.nodes
    yield (
        "layout",
        f"{count(plan.nodes, 'node')} x {count(per_node, 'GPU')} = {count(plan.world, 'rank')}: "
        f"{plan.layout}; {count(plan.micro_batches, 'micro-batch').replace('hs', 'hes')} "
        f"of {count(plan.samples, 'sample')}",
    )
    yield (
        "card",
        f"{plan.card.name}, {plan.card.memory_gib:g} GiB, of which {size(plan.room)} are available "
        "to tensors",
    )
    yield "memory", _memory(plan)
    yield "speed", _speed(plan)
    if plan.speed is not None:
        yield "roofline", _roofline(plan)
    yield "saves", _saves(plan)
    yield "recommended", _recommended(plan)
    yield "assumed", _assumed(plan)


def problems(plan: RunEstimate) -> Iterator[str]:
    """Return why the run cannot work on the card: what, where, and what to do."""
    if not plan.fits:
        peak = plan.footprint.peak
        most = sorted(peak.parts().items(), key=lambda part: -part[1])[:3]
        parts = ", ".join(f"{name} {size(value)}" for name, value in most)
        yield (
            f"memory: a GPU needs {size(peak.total)} {MOMENTS[plan.footprint.at]} ({parts}, ...), "
            f"but {size(plan.room)} of the {plan.card.name} are available to tensors; "
            f"{_remedy(plan)}"
        )
    if plan.speed is None:
        yield (
            f"precision.compute: the {plan.card.name} does not support {plan.compute} in hardware; "
            f"try precision={'fp16' if plan.compute == 'bf16' else 'bf16'}"
        )


def memory_table(plan: RunEstimate) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the table of memory, by category and moment of a step."""
    moments = plan.footprint.moments
    rows = [[name, *_cells(moments.values(), name)] for name in plan.footprint.peak.parts()]
    for name, found in (("total", plan.footprint), ("recomputed", plan.recomputed)):
        totals = [size(memory.total) for memory in found.moments.values()]
        rows.append([name, *totals])
    return ["", *moments], rows


def time_table(plan: RunEstimate) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the table of a step's time; no rows if it is not known."""
    if plan.speed is None:
        return ["", "time", "share"], []
    step = plan.speed.step
    rows = [
        [name, seconds(value), f"{value / step.total:.1%}"]
        for name, value in step.parts().items()
        if value > 0
    ]
    return ["", "time", "share"], [*rows, ["total", seconds(step.total), ""]]


def summary(plan: RunEstimate) -> str:
    """Return the plan in a line, without memory."""
    fit = "fits" if plan.has_headroom else f"{_misfit(plan)}; {_remedy(plan)}"
    if plan.speed is None:
        return f"{plan.card.name}: {fit}"
    return (
        f"{plan.card.name}: {fit}; {seconds(plan.speed.step.total)} per step, "
        f"{large(plan.speed.tokens_per_s)} {plan.unit}s/s at {plan.assumptions.utilisation:.0%} "
        f"of the peak while computing; more: hpckit plan"
    )


def memory_line(peak: MemoryUse, at: str, parameters: int, layout: str) -> str:
    """Return the memory of the rank that needs most, in a line."""
    parts = ", ".join(f"{size(value)} {name}" for name, value in peak.parts().items() if value)
    return (
        f"{large(parameters)} parameters ({layout}); a rank needs {size(peak.total)} "
        f"{MOMENTS[at]}: {parts}"
    )


def seconds(value: float) -> str:
    """Format a short time: "12 ms", "1.25 s"; a long one as `span` does."""
    if value >= 100:
        return span(value)
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def large(value: float) -> str:
    """Format a count: "8.03 G"."""
    return decimal(value, "").rstrip()


def _cells(moments: Iterable[MemoryUse], name: str) -> list[str]:
    values = [memory.parts()[name] for memory in moments]
    return [size(value) if value else "-" for value in values]


def _memory(plan: RunEstimate) -> str:
    peak, again = plan.footprint.peak, plan.recomputed.peak
    return (
        f"peak {size(peak.total)}, {MOMENTS[plan.footprint.at]}"
        f"{'' if plan.has_headroom else f': {_misfit(plan)}'}; "
        f"{size(again.total)} with full activation checkpointing"
    )


def _speed(plan: RunEstimate) -> str:
    if plan.speed is None:
        return f"unknown: the {plan.card.name} does not support {plan.compute} in hardware"
    found = plan.speed
    step = found.step
    parts = ", ".join(f"{name} {seconds(value)}" for name, value in step.parts().items() if value)
    return (
        f"{seconds(step.total)} per step of {large(found.tokens)} {plan.unit}s ({parts}): "
        f"{large(found.tokens_per_s)} {plan.unit}s/s, MFU {found.utilisation:.1%}"
    )


def _roofline(plan: RunEstimate) -> str:
    assert plan.speed is not None
    best = plan.speed.roofline
    limits = ", ".join(f"{name} {seconds(value)}" for name, value in best.limits().items() if value)
    return (
        f"at best {seconds(best.best)} per step, {best.bound}-bound ({limits}); arithmetic "
        f"intensity {best.intensity:.0f} FLOP/byte, the ridge point of the card is {best.ridge:.0f}"
    )


def _saves(plan: RunEstimate) -> str:
    found = plan.goodput
    return (
        f"every {span(found.interval_s)} is best for an MTBF of the job of {span(found.mtbf_s)} "
        f"(a save stalls training for {seconds(found.stall_s)}, and is durable after "
        f"{seconds(found.durable_s)}): {found.fraction:.2%} goodput{_configured(plan)}"
    )


def _configured(plan: RunEstimate) -> str:
    found = plan.configured
    if found is None:
        return ""
    return f"; as configured, every {span(found.interval_s)}: {found.fraction:.2%}"


def _misfit(plan: RunEstimate) -> str:
    """Return how a run without headroom fits."""
    if not plan.fits:
        return "does not fit"
    return f"fits only if the estimate is exact, which may be {_percent(plan.error)} too low"


def _recommended(plan: RunEstimate) -> str:
    error = f"the estimate may be {_percent(plan.error)} too low"
    if plan.choice is None:
        return (
            f"no layout fits with headroom on {plan.world} of these cards ({error}): use more "
            "nodes, or a smaller model"
        )
    spare = size(plan.room - plan.choice.peak)
    return f"{_words(plan.choice)}: {size(plan.choice.peak)}, which leaves {spare} ({error})"


def _remedy(plan: RunEstimate) -> str:
    if plan.choice is None:
        return "no layout fits here with headroom: use more nodes, larger cards or a smaller model"
    return f"try {_words(plan.choice)} ({size(plan.choice.peak)})"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _words(choice: LayoutChoice) -> str:
    return " ".join(choice.words)


def _assumed(plan: RunEstimate) -> str:
    given = plan.assumptions
    node_mtbf_hours = plan.goodput.mtbf_s * plan.nodes / 3600
    return (
        f"{given.utilisation:.0%} of the peak FLOP/s while computing (--mfu), a node fails every "
        f"{node_mtbf_hours:,.0f} h (--mtbf-hours), the store writes {given.storage_gbps:g} "
        f"GB/s (--storage-gbps), a restart takes {span(RESTART_S)}{_of_host(plan)}"
    )


def _of_host(plan: RunEstimate) -> str:
    if plan.speed is None or not plan.speed.roofline.host:
        return ""
    return f", an optimizer in the host's memory moves {HOST_MEMORY_GBPS:g} GB/s for each GPU"
