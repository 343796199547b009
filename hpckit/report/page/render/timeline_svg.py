"""Timelines and shares of time as SVG. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.report.page.page_document import SharePart, SharesBlock, TimelineBlock
from hpckit.report.page.render.plot_axes import label, time_axis
from hpckit.report.page.render.svg_elements import bar, line, percent, picture, words
from hpckit.text.quantities import span

_ROW, _BAR, _BELOW = 40.0, 14.0, 44.0  # pixels
_LEAST = 0.002  # share of the width: shorter stretches are drawn this wide
_TICKS = 5


def draw_timeline(it: TimelineBlock) -> str:
    """Draw a row for each lane: its name, and below it a bar."""
    axis, unit_s, unit = time_axis(it.seconds, _TICKS)
    bottom = _ROW * len(it.lanes) + 4
    parts = []
    for number, tick in enumerate(axis.ticks):
        at, kind = percent(axis.at(tick)), "minor" if number % 2 else ""
        parts.append(line(at, 0, at, bottom + 4, "grid"))
        parts.append(words(at, bottom + 17, label(tick, axis.ticks), "middle", kind))
    for row, lane in enumerate(it.lanes):
        top = row * _ROW
        parts.append(words("0%", top + 13, lane.name, kind="lane"))
        for one in lane.stretches:
            begin, end = axis.at(one.begin_s / unit_s), axis.at(one.end_s / unit_s)
            wide = percent(max(end - begin, _LEAST))
            at = percent(min(begin, 1 - _LEAST))
            text = f"{one.words}: {span(one.end_s - one.begin_s)}"
            parts.append(bar(at, top + 18, wide, _BAR, one.kind, text))
    parts.append(line("0%", bottom, "100%", bottom, "axis"))
    parts.append(words("100%", bottom + 35, f"{unit} since {it.origin}", "end", "name"))
    return picture(it.title, bottom + _BELOW, parts)


def draw_shares(it: SharesBlock) -> str:
    """Draw a bar for each row, below its name if it has one; their lengths can be compared."""
    most = max((_whole(parts) for _, parts in it.bars), default=0.0) or 1.0
    drawn, top = list[str](), 2.0
    for name, parts in it.bars:
        if name:
            drawn.append(words("0%", top + 13, name, kind="lane"))
            top += 18
        drawn += _bar(parts, most, top, 22.0 if not name else _BAR)
        top += 24.0 if not name else _BAR + 8
    return picture(it.title, top, drawn)


def _bar(parts: Sequence[SharePart], most: float, top: float, high: float) -> Iterator[str]:
    whole, at = _whole(parts) or 1.0, 0.0
    for part in parts:
        share = part.value / most
        text = f"{part.name}: {part.value / whole:.1%}"
        yield bar(percent(at), top, percent(share), high, part.kind, text)
        at += share


def _whole(parts: Sequence[SharePart]) -> float:
    return sum(part.value for part in parts)
