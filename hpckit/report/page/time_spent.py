"""How a run's time was spent, what it cost, and what it waited for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.report.cost.cost_summary import RunCost
from hpckit.report.page.colour_meanings import Meaning, of_cause, of_phase
from hpckit.report.page.page_content import PageContent
from hpckit.report.page.page_document import (
    Block,
    FactsBlock,
    SharePart,
    SharesBlock,
    TableBlock,
    TextBlock,
)
from hpckit.report.performance.bottleneck import advice, bottleneck, describe_bottleneck
from hpckit.report.performance.speed_report import collectives_words, time_went
from hpckit.report.source_progress import describe_change, describe_source
from hpckit.text.quantities import span, span_s

_LEAST_HOURS = 0.001
LEAST = 0.0005
"""Share of the whole below which a part is left out, as it would be shown as 0.0 %."""


def parts_of(it: PageContent) -> list[SharePart]:
    """Return seconds of the wall time by what they were spent on: the parts of `time_went`, with
    the time lost to interruptions split as in `Interruption`."""
    went, gaps = time_went(it.history, it.in_steps), it.history.interruptions
    restart_s = sum(gap.restart_s for gap in gaps)
    return [
        SharePart("training: kept steps", went["steps"], Meaning.TRAIN),
        SharePart("start: before the first step", went["start"], Meaning.START),
        SharePart(
            "lost, leave: notice, save, exit", sum(gap.leave_s for gap in gaps), Meaning.LOST
        ),
        SharePart(
            "lost, restart: queue, processes, rendezvous, restore", restart_s, Meaning.RESTART
        ),
        SharePart(
            "lost, repeat: repeated steps", sum(gap.repeat_s for gap in gaps), Meaning.REPEATED
        ),
        SharePart("other: mostly the last save", went["else"], Meaning.OTHER),
    ]


def time_blocks(it: PageContent) -> Iterator[Block]:
    went = time_went(it.history, it.in_steps)
    yield from shares("Wall time", parts_of(it), "part of the wall time", "time")
    if it.history.interruptions:
        yield TextBlock(f"Restoring the state took {span_s(went['restore'])} of the restarts.")
    yield TextBlock(
        "The ETTR above is the number of kept steps times the median step time, as a share of all "
        "time since the first job began, with the queue between jobs. The training share is the "
        "same of the time from the first step record to the last."
    )
    spec = it.overview.spec
    parts = [
        SharePart(name.replace("_", " "), seconds, of_phase(name))
        for name, seconds in it.in_steps.parts.items()
    ]
    yield from shares("Time of steps", parts, "part of a step", "time")
    loop = bottleneck(it.in_steps)
    rows = [("bottleneck", describe_bottleneck(it.in_steps, loop, spec))]
    rows += [("suggestion", line) for line in advice(it.in_steps, loop, spec)]
    if it.in_steps.exposed is not None:
        rows.append(("collectives", collectives_words(it.in_steps)))
    yield FactsBlock(rows)


def cost_blocks(it: PageContent) -> Iterator[Block]:
    """Yield what the run has cost, by cause."""
    cost = it.cost
    facts = cost_facts(cost)
    if not facts:
        yield TextBlock("It has not held a node yet.")
        return
    yield FactsBlock(facts, are_key=True)
    parts = hour_parts(cost)
    yield from shares("Node-hours by cause", parts, "cause", "node-hours")
    if cost.money is None:
        yield TextBlock("With --gpu-price or --node-price, the page says what it has cost.")


def cost_facts(cost: RunCost) -> list[tuple[str, str]]:
    """Return the figures of a cost; empty if there is none."""
    if not cost.total_hours:
        return []
    facts = [("node-hours", hours_text(cost.total_hours))]
    if cost.gpu_hours is not None:
        facts.append(("GPU-hours", hours_text(cost.gpu_hours)))
    if cost.money is not None:
        facts.append(("price", f"{cost.money:,.2f}"))
    if cost.energy_kwh is not None:
        facts.append(("energy", f"{cost.energy_kwh:,.2f} kWh"))
    if cost.queued_hours > 0:
        facts.append(("between jobs", span(3600 * cost.queued_hours)))
    return facts


def hour_parts(cost: RunCost) -> list[SharePart]:
    """Return the node-hours by cause, the largest first."""
    return [SharePart(cause, hours, of_cause(cause)) for cause, hours in cost.node_hours.items()]


def hours_text(hours: float) -> str:
    """Format hours so that a short run has some digits, too."""
    if hours >= 1:
        return f"{hours:,.2f}"
    return f"{hours:.2g}" if hours >= _LEAST_HOURS else f"< {_LEAST_HOURS}"


def shares(title: str, parts: Sequence[SharePart], what: str, unit: str) -> Iterator[Block]:
    """Yield a bar and the table of its parts, without those that are next to nothing."""
    whole = sum(part.value for part in parts)
    shown = [part for part in parts if whole > 0 and part.value >= LEAST * whole]
    if not shown:
        return
    yield SharesBlock(title, (("", shown),))
    as_text = hours_text if unit == "node-hours" else span_s
    rows = [(part.name, as_text(part.value), f"{part.value / whole:.1%}") for part in shown]
    yield TableBlock((what, unit, "share"), rows, words=(what,), kinds=[p.kind for p in shown])


def data_blocks(it: PageContent) -> Iterator[Block]:
    rows = []
    if it.in_steps.parts:
        share = it.in_steps.share("data_wait")
        rows.append(("waiting for data", f"{share:.1%} of the step time"))
    if it.loader_totals is not None:
        if used := _cache(it):
            rows.append(("cache", used))
        if it.loader_totals.errors:
            rows.append(("errors", f"{it.loader_totals.errors:,}"))
        if it.loader_totals.bound is not None:
            rows.append(("last report", it.loader_totals.bound))
    history = it.history
    rows += [("source", describe_source(*each)) for each in history.sources.items()]
    rows += [("mixture", describe_change(change)) for change in history.mixture_changes]
    yield FactsBlock(rows) if rows else TextBlock("No data statistics were recorded.")


def _cache(it: PageContent) -> str:
    """Return how well the cache worked; empty if it was not used."""
    assert it.loader_totals is not None
    found, every = (
        it.loader_totals,
        it.loader_totals.hits + it.loader_totals.misses + it.loader_totals.bypasses,
    )
    if not every:
        return ""
    counts = {"hits": found.hits, "misses": found.misses, "bypassed it": found.bypasses}
    each = ", ".join(f"{number:,} {name}" for name, number in counts.items() if number)
    return f"{found.hits / every:.1%} hits ({each})"
