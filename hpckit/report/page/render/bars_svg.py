"""Stacked horizontal bars as SVG. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.report.page.colour_meanings import of_run
from hpckit.report.page.page_document import BarsBlock
from hpckit.report.page.render.plot_axes import label
from hpckit.report.page.render.svg_elements import bar, line, percent, picture, words

_NAME, _BAR, _GAP = 16.0, 14.0, 8.0  # pixels
_ROW = _NAME + _BAR + _GAP
_LIMIT = "mark limit"
_TOP = 24.0  # pixels above the first row, for the name of the limit


def draw_bars(block: BarsBlock) -> str:
    """Draw the bars, each below its name and its total, so that they have the whole width of a
    narrow screen, too."""
    top = 0.0 if block.limit is None else _TOP
    parts = [*_bars(block, top), *_limit(block, top)]
    return picture(block.title, top + _ROW * len(block.bars), parts)


def longest(block: BarsBlock) -> float:
    """Return the number that has the whole width: that of the longest bar, or the limit."""
    totals = [sum(values) for _, values in block.bars]
    return max([*totals, block.limit[1] if block.limit else 0.0]) or 1.0


def _bars(block: BarsBlock, top: float) -> Iterator[str]:
    most = longest(block)
    for number, (name, values) in enumerate(block.bars):
        y, at = top + number * _ROW, 0.0
        yield words("0%", y + 12, f"{name}: {label(sum(values))} {block.unit}", kind="lane")
        for colour, (part, value) in enumerate(zip(block.parts, values, strict=True)):
            if value > 0:
                title = f"{name}: {part} {label(value)} {block.unit}"
                place = (percent(at / most), y + _NAME, percent(value / most), _BAR)
                yield bar(*place, of_run(colour), title)
            at += value


def _limit(block: BarsBlock, top: float) -> Iterator[str]:
    if block.limit is None:
        return
    name, value = block.limit
    share = value / longest(block)
    text = f"{name}: {label(value)} {block.unit}"
    yield line(percent(share), top - 6, percent(share), top + _ROW * len(block.bars), _LIMIT, text)
    yield words(percent(share), top - 10, text, "end" if share > 0.5 else "start", _LIMIT)
