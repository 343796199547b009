"""The page that compares several runs. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpckit.config.spec_parser import spec_values
from hpckit.report.page.colour_meanings import of_cause
from hpckit.report.page.curve_plots import overlaid
from hpckit.report.page.curve_values import Curve
from hpckit.report.page.page_content import PageContent
from hpckit.report.page.page_document import (
    Block,
    PageDocument,
    Plot,
    PlotsBlock,
    Section,
    SharesBlock,
    TableBlock,
    TextBlock,
)
from hpckit.report.page.page_sections import alerts, exact, key_figures, sections_of
from hpckit.report.page.time_spent import LEAST, cost_facts, hour_parts, hours_text

_NOT_THERE = "(key not set)"
_NOT_READ = "(config cannot be read)"
_MOST_BEHIND = 4
"""Number of runs up to which the losses are drawn behind the smoothed ones, too."""


def document_of(runs: Sequence[PageContent]) -> PageDocument:
    """Return the page of several runs; for one run, see `page_of`."""
    names = labels(runs)
    sections = [
        Section("Compared", (_figures(runs, names), *_alerts(runs, names))),
        Section("Config", tuple(_config(runs, names))),
        Section("Loss", tuple(_losses(runs, names))),
        Section("Speed", tuple(_speeds(runs, names))),
        Section("Cost", tuple(_costs(runs, names))),
    ]
    if evaluations := tuple(_evaluations(runs, names)):
        sections.insert(3, Section("Evaluation", (PlotsBlock(evaluations),)))
    for name, it in zip(names, runs, strict=True):
        sections.append(Section(name, (), tuple(sections_of(it)), is_folded=True))
    title = f"{len(runs)} runs: {', '.join(names)}"
    return PageDocument(title, exact(max(it.now for it in runs)), tuple(sections))


def labels(runs: Sequence[PageContent]) -> list[str]:
    """Return a label for each run: its name, or its path if two have one name."""
    names = [it.overview.run.name for it in runs]
    return [
        str(it.overview.run.path) if names.count(name) > 1 else name
        for name, it in zip(names, runs, strict=True)
    ]


def differences(runs: Sequence[PageContent]) -> dict[str, list[Any]]:
    """Return, for each key of the config that is not the same in all runs, its value in each run;
    None: that run has no such key, or its config cannot be read."""
    specs = [it.overview.spec for it in runs]
    flat = [dict(_flat(spec_values(spec))) if spec is not None else None for spec in specs]
    known = [one for one in flat if one is not None]
    keys = dict.fromkeys(key for one in known for key in one)
    return {
        key: [None if one is None else one.get(key) for one in flat]
        for key in keys
        if len({one.get(key) for one in known}) > 1
    }


def _flat(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        key = f"{path}{name}"
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value if isinstance(value, str) else json.dumps(value)


def _figures(runs: Sequence[PageContent], names: Sequence[str]) -> TableBlock:
    found = [dict(key_figures(it)) for it in runs]
    rows = dict.fromkeys(name for one in found for name in one)
    cells = tuple((name, *(one.get(name, "") for one in found)) for name in rows)
    return TableBlock(("", *names), cells, words=("", *names), has_names=True)


def _alerts(runs: Sequence[PageContent], names: Sequence[str]) -> Iterator[TextBlock]:
    for name, it in zip(names, runs, strict=True):
        yield from (TextBlock(f"{name}: {words}", is_alert=True) for words in alerts(it))


def _losses(runs: Sequence[PageContent], names: Sequence[str]) -> Iterator[Block]:
    """Yield the losses, smoothed where they can be, those of validation, and what the optimizer
    has seen."""
    clear = [it.smoothed if it.smoothed.points else it.loss for it in runs]
    behind = [it.loss for it in runs] if len(runs) <= _MOST_BEHIND else []
    loss = overlaid("Loss over steps", "loss", list(zip(names, clear, strict=True)), behind)
    if loss is None:
        yield TextBlock("None of the runs has recorded a loss.")
    else:
        yield replace(loss, has_choice=True)
    validation = _overlaid("Validation loss over steps", runs, names, lambda it: it.validation)
    if validation is None:
        yield TextBlock("None of the runs has recorded a validation loss.")
    norm = _overlaid("Gradient norm over steps", runs, names, lambda it: it.norm)
    rate = _overlaid("Learning rate over steps", runs, names, lambda it: it.rate, from_zero=True)
    if plots := [plot for plot in (validation, norm, rate) if plot is not None]:
        yield PlotsBlock(plots)


def _overlaid(
    title: str,
    runs: Sequence[PageContent],
    names: Sequence[str],
    curve_of_run: Callable[[PageContent], Curve],
    *,
    from_zero: bool = False,
) -> Plot | None:
    curves = [curve_of_run(it) for it in runs]
    unit = title.removesuffix(" over steps").lower()
    return overlaid(
        title,
        unit,
        [(name, replace(curve, unit=unit)) for name, curve in zip(names, curves, strict=True)],
        from_zero=from_zero,
    )


def _evaluations(runs: Sequence[PageContent], names: Sequence[str]) -> Iterator[Plot]:
    """Yield a plot for each metric that any run was evaluated by."""
    found = [dict(it.evaluation) for it in runs]
    for metric in dict.fromkeys(name for one in found for name in one):
        curves = [one.get(metric, Curve(metric, (), 0, 0)) for one in found]
        if plot := overlaid(f"{metric} over steps", metric, [*zip(names, curves, strict=True)]):
            yield replace(plot, lines=[replace(line, has_dots=True) for line in plot.lines])


def _speeds(runs: Sequence[PageContent], names: Sequence[str]) -> Iterator[Block]:
    """Return a plot for each unit, because tokens and seconds do not fit in one."""
    for unit in dict.fromkeys(it.speed.unit for it in runs):
        curves = [(name, it.speed) for name, it in zip(names, runs, strict=True)]
        if plot := overlaid(f"Speed over steps, {unit}", unit, curves, from_zero=True):
            yield plot


def _costs(runs: Sequence[PageContent], names: Sequence[str]) -> Iterator[Block]:
    """Yield the node-hours of each run by cause."""
    costs = [it.cost for it in runs]
    if not any(cost.total_hours for cost in costs):
        yield TextBlock("None of the runs has held a node.")
        return
    bars = [(name, hour_parts(cost)) for name, cost in zip(names, costs, strict=True)]
    yield SharesBlock("Node-hours by cause", bars)
    causes = dict.fromkeys(cause for cost in costs for cause in cost.node_hours)
    shown = [one for one in causes if any(cost.share(one) >= LEAST for cost in costs)]
    rows = [
        (cause, *(hours_text(h) if (h := cost.node_hours.get(cause)) else "" for cost in costs))
        for cause in shown
    ]
    kinds = [of_cause(cause) for cause in shown]
    yield TableBlock(
        ("node-hours", *names), rows, words=("node-hours",), kinds=kinds, has_names=True
    )
    facts = [dict(cost_facts(cost)) for cost in costs]
    found = dict.fromkeys(name for one in facts for name in one)
    yield TableBlock(
        ("in all", *names),
        [(name, *(one.get(name, "") for one in facts)) for name in found],
        words=("in all",),
        has_names=True,
    )


def _config(runs: Sequence[PageContent], names: Sequence[str]) -> Iterator[Block]:
    missing = [it.overview.spec is None for it in runs]
    for name, is_missing in zip(names, missing, strict=True):
        if is_missing:
            yield TextBlock(f"{name}: {_NOT_READ}", is_alert=True)
    found = differences(runs)
    if not found:
        yield TextBlock("The runs have the same config, as far as it can be read.")
        return
    rows = tuple((key, *_cells(values, missing)) for key, values in found.items())
    yield TableBlock(("key", *names), rows, words=("key", *names), has_names=True)


def _cells(values: Sequence[Any], missing: Sequence[bool]) -> list[str]:
    reasons = (_NOT_READ if is_missing else _NOT_THERE for is_missing in missing)
    return [why if value is None else value for value, why in zip(values, reasons, strict=True)]
