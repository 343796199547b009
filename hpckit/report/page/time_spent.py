"""How a run's time was spent, and what it waited for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.report.page.page_content import PageContent
from hpckit.report.page.page_document import Block, FactsBlock, SharesBlock, TableBlock, TextBlock
from hpckit.report.performance.bottleneck import advice, bottleneck, describe
from hpckit.report.performance.speed_report import collectives_words, time_went
from hpckit.report.source_progress import describe_change, describe_source


def parts_of(it: PageContent) -> list[tuple[str, float]]:
    """Return seconds of the wall time by what they were spent on: the parts of `time_went`, with
    the time lost to interruptions split as in `Interruption`."""
    went, gaps = time_went(it.history, it.in_steps), it.history.interruptions
    return [
        ("training: kept steps", went["steps"]),
        ("start: before the first step", went["start"]),
        ("lost, leave: notice, save, exit", sum(gap.leave_s for gap in gaps)),
        (
            "lost, restart: queue, processes, rendezvous, restore",
            sum(gap.restart_s for gap in gaps),
        ),
        ("lost, repeat: repeated steps", sum(gap.repeat_s for gap in gaps)),
        ("other: mostly the last save", went["else"]),
    ]


def time_blocks(it: PageContent) -> Iterator[Block]:
    went = time_went(it.history, it.in_steps)
    yield from _shares("Wall time", parts_of(it), "part of the wall time")
    yield from _node_hours(it)
    if it.history.interruptions:
        yield TextBlock(f"Restoring the state took {went['restore']:.1f} s of the restarts.")
    yield TextBlock(
        "The ETTR above is the number of kept steps times the median step time, as a share of all "
        "time since the first job began, with the queue between jobs. The training share is the "
        "same of the time from the first step record to the last."
    )
    if not it.in_steps.parts:
        yield TextBlock("The phases of the steps were not recorded.")
        return
    parts = [(name.replace("_", " "), seconds) for name, seconds in it.in_steps.parts.items()]
    yield from _shares("Time of steps", [part for part in parts if part[1] > 0], "part of a step")
    loop = bottleneck(it.in_steps)
    rows = [("bottleneck", describe(it.in_steps, loop))]
    rows += [("suggestion", line) for line in advice(it.in_steps, loop, it.overview.spec)]
    if it.in_steps.exposed is not None:
        rows.append(("collectives", collectives_words(it.in_steps)))
    yield FactsBlock(rows)


def _node_hours(it: PageContent) -> Iterator[Block]:
    cost = it.cost
    rows = tuple(
        (cause, f"{hours:,.2f}", f"{cost.share(cause):.1%}")
        for cause, hours in cost.node_hours.items()
    )
    if rows:
        what = "node-hours by cause"
        yield TableBlock((what, f"{cost.total_hours:,.2f} in all", "share"), rows, words=(what,))


def _shares(title: str, parts: Sequence[tuple[str, float]], what: str) -> Iterator[Block]:
    whole = sum(seconds for _, seconds in parts)
    if whole <= 0:
        return
    yield SharesBlock(title, parts)
    rows = tuple((name, f"{seconds:,.1f} s", f"{seconds / whole:.1%}") for name, seconds in parts)
    yield TableBlock((what, "seconds", "share"), rows, words=(what,), swatches=True)


def data_blocks(it: PageContent) -> Iterator[Block]:
    rows = []
    if it.in_steps.parts:
        share = it.in_steps.share("data_wait")
        rows.append(("waiting for data", f"{share:.1%} of the step time"))
    if it.intake is not None:
        rows.append(("cache", _cache(it)))
        rows.append(("errors", f"{it.intake.errors:,}"))
        if it.intake.bound is not None:
            rows.append(("last report", it.intake.bound))
    history = it.history
    rows += [("source", describe_source(*each)) for each in history.sources.items()]
    rows += [("mixture", describe_change(change)) for change in history.mixture_changes]
    yield FactsBlock(rows) if rows else TextBlock("No data statistics were recorded.")


def _cache(it: PageContent) -> str:
    assert it.intake is not None
    found, every = it.intake, it.intake.hits + it.intake.misses + it.intake.bypasses
    if not every:
        return "not used"
    return (
        f"{found.hits / every:.1%} hits ({found.hits:,} hits, {found.misses:,} misses, "
        f"{found.bypasses:,} bypassed it)"
    )
