"""The page of `hpckit bench scaling`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpckit.cli.bench.scaling_figures import (
    EFFICIENT,
    ScalingPoint,
    common_target,
    conclusion,
    doubt,
    explain,
    seconds_to,
    trusted_efficiency,
)
from hpckit.report.page.colour_meanings import Meaning, of_run
from hpckit.report.page.page_document import (
    BarsBlock,
    Block,
    FactsBlock,
    PageDocument,
    Plot,
    PlotLine,
    Section,
    TableBlock,
    TextBlock,
)
from hpckit.text.quantities import count

Found = Mapping[str, Sequence[ScalingPoint]]
_OVER = "ranks"


def scaling_page(
    found: Found,
    title: str,
    as_of: str,
    target: float | None,
    failures: Mapping[str, str] | None = None,
) -> PageDocument:
    """Return the page.

    Args:
        found: the points of each model, by ascending number of ranks.
        title: the kind of scaling.
        as_of: when it was measured, as text.
        target: the loss to reach; None: of each model the lowest that all its runs have reached.
        failures: why some runs were not measured, by model and world.
    """
    sections = (
        Section("Result", tuple(_result(found, failures or {}))),
        Section("Speed", tuple(_speed(found))),
        Section("Efficiency", tuple(_efficiency(found))),
        Section("Synchronisation", tuple(_synchronisation(found))),
        Section("Time to a loss", tuple(_targets(found, target))),
        Section("Figures", (figures_table(found),)),
    )
    return PageDocument(title.capitalize(), as_of, sections)


def figures_table(found: Found) -> TableBlock:
    """Return all figures as a table."""
    head = ("model", "nodes x workers", "ranks", "batch", "step", "samples/s", "tokens/s")
    shares = ("efficiency", "communication", "data wait")
    rows = tuple((model, *cells(one, own)) for model, own in found.items() for one in own)
    return TableBlock((*head, *shares), rows, words=head[:2])


def cells(one: ScalingPoint, own: Sequence[ScalingPoint]) -> list[str]:
    """Return the figures of one of a model's points as text, without the model."""
    efficiency = trusted_efficiency(one, own)
    tokens = "" if one.tokens_per_s is None else f"{one.tokens_per_s:,.0f}"
    share = "" if one.communication is None else f"{one.communication:.0%}"
    return [
        str(one.world),
        str(one.world.ranks),
        f"{one.global_batch:,}",
        f"{1e3 * one.step_s:.1f} ms",
        f"{one.samples_per_s:,.1f}",
        tokens,
        "?" if efficiency is None else f"{efficiency:.0%}",
        share,
        f"{one.data_wait:.0%}",
    ]


def _result(found: Found, failures: Mapping[str, str]) -> Iterator[Block]:
    for name, why in failures.items():
        yield TextBlock(f"{name} was not measured: {why}", is_alert=True)
    yield FactsBlock(tuple((model, conclusion(own)) for model, own in found.items()))
    reasons = ((model, explain(model, found)) for model in found)
    if rows := tuple((model, why) for model, why in reasons if why is not None):
        yield TextBlock("Why communication takes the time that it takes:")
        yield FactsBlock(rows)


def _speed(found: Found) -> Iterator[Block]:
    lines = [
        _line(n, model, own, [_relative(one, own[0]) for one in own])
        for n, (model, own) in enumerate(found.items())
    ]
    counts = sorted({one.world.ranks for own in found.values() for one in own})
    ideal = [(float(ranks), ranks / counts[0]) for ranks in counts]
    lines.append(PlotLine("perfect scaling", ideal, Meaning.PARENT))
    yield Plot(
        "Samples per second over those of the fewest ranks",
        "times as fast",
        lines,
        from_zero=True,
        over=_OVER,
    )


def _relative(one: ScalingPoint, first: ScalingPoint) -> float:
    return one.samples_per_s / first.samples_per_s


def _line(
    number: int, model: str, own: Sequence[ScalingPoint], values: Sequence[float | None]
) -> PlotLine:
    """Return the values of a model by ranks."""
    points = [(float(one.world.ranks), value) for one, value in zip(own, values, strict=True)]
    return PlotLine(model, points, of_run(number), has_dots=True)


def _efficiency(found: Found) -> Iterator[Block]:
    lines = [
        _line(n, model, own, [trusted_efficiency(one, own) for one in own])
        for n, (model, own) in enumerate(found.items())
    ]
    counts = sorted({one.world.ranks for own in found.values() for one in own})
    good = [(float(ranks), EFFICIENT) for ranks in counts]
    lines.append(PlotLine(f"{EFFICIENT:.0%} of perfect", good, Meaning.PARENT))
    yield Plot("Efficiency", "share of perfect", lines, from_zero=True, over=_OVER)
    for model, own in found.items():
        if why := doubt(own):
            yield TextBlock(f"{model}: {why}", is_alert=True)


def _synchronisation(found: Found) -> Iterator[Block]:
    for model, own in found.items():
        known = [one for one in own if one.communication_s is not None]
        bars = [(count(one.world.ranks, "rank"), _step_parts(one)) for one in known]
        if bars:
            yield BarsBlock(
                f"Time of a step of {model}",
                "ms",
                ("computing and else", "waiting for data", "only communication"),
                bars,
            )
    yield TextBlock(
        "Only communication: what steps under torch's profiler spent in collectives while nothing "
        "was computed, which includes waiting for ranks that came later."
    )


def _step_parts(one: ScalingPoint) -> list[float]:
    waits, data = one.communication_s or 0.0, one.data_wait * one.step_s
    return [1e3 * part for part in (max(0.0, one.step_s - waits - data), data, waits)]


def _targets(found: Found, target: float | None) -> Iterator[Block]:
    rows, lines = [], []
    for n, (model, own) in enumerate(found.items()):
        wanted = common_target(own) if target is None else target
        if wanted is None:
            continue
        times = [seconds_to(one, wanted) for one in own]
        lines.append(_line(n, model, own, times))
        for one, seconds in zip(own, times, strict=True):
            reached = "not reached" if seconds is None else f"{seconds:.2f} s"
            rows.append((model, str(one.world.ranks), f"{wanted:.4g}", reached))
    if any(value is not None for line in lines for _, value in line.points):
        yield Plot("Time to the loss", "seconds", lines, from_zero=True, over=_OVER)
    if rows:
        yield TableBlock(("model", "ranks", "loss", "time"), tuple(rows), words=("model",))
    yield TextBlock(
        "Seconds of training, without the start. The loss is averaged over 5 steps, and by default "
        "the lowest that all runs of a model have reached. In weak scaling a step of more ranks "
        "has more samples, so the loss falls in fewer steps, but rarely in proportion."
    )
