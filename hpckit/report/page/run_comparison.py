"""The page that compares several runs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpckit.config.spec_parser import spec_values
from hpckit.report.page.curve_plots import overlaid
from hpckit.report.page.page_content import Curve, PageContent
from hpckit.report.page.page_document import Block, PageDocument, Section, TableBlock, TextBlock
from hpckit.report.page.page_sections import alerts, exact, key_figures, sections_of

_NOT_THERE = "(key not set)"
_NOT_READ = "(config cannot be read)"


def document_of(runs: Sequence[PageContent]) -> PageDocument:
    """Return the page of several runs; for one run, see `page_of`."""
    names = labels(runs)
    sections = [
        Section("Compared", (_figures(runs, names), *_alerts(runs, names))),
        Section("Loss", tuple(_curves("Loss over steps", "loss", runs, names))),
        Section("Validation", tuple(_curves("Validation loss", "validation", runs, names))),
        Section("Speed", tuple(_speeds(runs, names))),
        Section("Config", tuple(_config(runs, names))),
    ]
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
    return TableBlock(("", *names), cells, words=("", *names))


def _alerts(runs: Sequence[PageContent], names: Sequence[str]) -> Iterator[TextBlock]:
    for name, it in zip(names, runs, strict=True):
        yield from (TextBlock(f"{name}: {words}", is_alert=True) for words in alerts(it))


def _curves(
    title: str, which: str, runs: Sequence[PageContent], names: Sequence[str]
) -> Iterator[Block]:
    curves: list[Curve] = [getattr(it, which) for it in runs]
    plot = overlaid(title, "loss", list(zip(names, curves, strict=True)))
    yield plot if plot is not None else TextBlock(f"None of the runs has recorded a {which} loss.")


def _speeds(runs: Sequence[PageContent], names: Sequence[str]) -> Iterator[Block]:
    """Return a plot for each unit, because tokens and seconds do not fit in one."""
    for unit in dict.fromkeys(it.speed.unit for it in runs):
        curves = [(name, it.speed) for name, it in zip(names, runs, strict=True)]
        if plot := overlaid(f"Speed over steps, {unit}", unit, curves, from_zero=True):
            yield plot


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
    yield TableBlock(("key", *names), rows, words=("key", *names))


def _cells(values: Sequence[Any], missing: Sequence[bool]) -> list[str]:
    reasons = (_NOT_READ if is_missing else _NOT_THERE for is_missing in missing)
    return [why if value is None else value for value, why in zip(values, reasons, strict=True)]
