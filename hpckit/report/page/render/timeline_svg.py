"""Timelines and shares of time as SVG. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.report.page.page_document import SharesBlock, TimelineBlock
from hpckit.report.page.render.plot_axes import label, time_axis
from hpckit.report.page.render.plot_svg import kind_of
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
    for tick in axis.ticks:
        at = percent(axis.at(tick))
        parts.append(line(at, 0, at, bottom + 4, "grid"))
        parts.append(words(at, bottom + 17, label(tick, axis.ticks), "middle"))
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
    """Draw one bar, whose parts have the colours of their numbers."""
    return picture(it.title, 26, list(_parts(it)))


def _parts(it: SharesBlock) -> Iterator[str]:
    whole, at = sum(value for _, value in it.parts) or 1.0, 0.0
    for number, (name, value) in enumerate(it.parts):
        share = value / whole
        yield bar(percent(at), 2, percent(share), 22, kind_of(number), f"{name}: {share:.1%}")
        at += share
