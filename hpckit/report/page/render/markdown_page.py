"""A page as Markdown, with tables in place of pictures. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hpckit.report.page.page_document import (
    BarsBlock,
    Block,
    CommandsBlock,
    FactsBlock,
    PageDocument,
    Plot,
    PlotLine,
    PlotsBlock,
    Section,
    SharesBlock,
    TableBlock,
    TextBlock,
    TimelineBlock,
)
from hpckit.report.page.render.plot_axes import label
from hpckit.text.quantities import clean

MARK = "<!-- hpckit report -->"
"""Text that identifies a page of hpckit's."""
_RANGES = 10
"""Number of ranges of steps by which a curve is summarized."""
_SPECIAL = re.compile(r"([\\`*_\[\]|<>~&$])")
_AT_FIRST = re.compile(r"^(\d*)([#+=.)-])")
"""Beginnings of a line that make it a heading, or an item of a list."""
_TICKS = re.compile(r"`+")


def markdown(document: PageDocument) -> str:
    """Return the whole page."""
    lines = [MARK, "", f"# {plain(document.title)}", "", f"as of {plain(document.as_of)}"]
    for section in document.sections:
        lines += _section(section, 2)
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Return `text` on one line, with all of Markdown's special characters escaped."""
    return _SPECIAL.sub(r"\\\1", clean(text).replace("\n", " "))


def code(text: str) -> str:
    """Return `text` on one line as code."""
    shown = clean(text).replace("\n", " ")
    most = max((len(found) for found in _TICKS.findall(shown)), default=0)
    fence = "`" * (most + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _section(section: Section, level: int) -> Iterator[str]:
    yield from ("", f"{'#' * level} {plain(section.title)}")
    for block in section.blocks:
        yield from _block(block)
    for one in section.inner:
        yield from _section(one, level + 1)


def _block(block: Block) -> Iterator[str]:
    match block:
        case TextBlock(words, is_alert):
            first = _AT_FIRST.sub(r"\1\\\2", plain(words))
            yield from ("", f"> **{plain(words)}**" if is_alert else first)
        case FactsBlock(rows, _):
            yield from ("", *(f"- **{plain(name)}**: {plain(text)}" for name, text in rows))
        case CommandsBlock(lines):
            yield from ("", *(f"- {code(line)}" for line in lines))
        case TableBlock():
            yield from ("", *_table(block))
        case Plot():
            yield from _plot(block)
        case PlotsBlock(plots):
            for plot in plots:
                yield from _plot(plot)
        case TimelineBlock() | SharesBlock():
            return  # the table after it has the same content
        case BarsBlock():
            yield from ("", f"**{plain(block.title)}**", "", *_table(bars_table(block)))


def _plot(plot: Plot) -> Iterator[str]:
    if plot.is_detail:
        return
    yield from ("", f"**{plain(plot.title)}**", "", *_table(ranges(plot)))
    yield from ("", *(f"- {plain(mark.words)}" for mark in plot.marks))


def _table(table: TableBlock) -> Iterator[str]:
    yield _row(table.head)
    yield _row_of(["---" if name in table.words else "---:" for name in table.head])
    yield from map(_row, table.rows)


def _row(cells: Sequence[str]) -> str:
    return _row_of([plain(cell) for cell in cells])


def _row_of(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def bars_table(block: BarsBlock) -> TableBlock:
    """Return the numbers of bars as a table."""
    head = (block.unit, *block.parts, "total")
    rows = [
        (name, *(label(value) for value in values), label(sum(values)))
        for name, values in block.bars
    ]
    if block.limit is not None:
        name, value = block.limit
        rows.append((name, *("" for _ in block.parts), label(value)))
    return TableBlock(head, rows, words=(block.unit,))


def ranges(plot: Plot) -> TableBlock:
    """Summarize each curve in some ranges of steps."""
    over = "steps" if plot.over == "step" else plot.over
    head = ("curve", over, "lowest", "highest", "last")
    rows = [row for line in plot.lines if not line.is_faint for row in _ranges_of(line)]
    return TableBlock(head, rows, words=("curve",))


def _ranges_of(line: PlotLine) -> Iterator[tuple[str, ...]]:
    points = [(step, value) for step, value in line.points if value is not None]
    size = -(-len(points) // _RANGES)
    for start in range(0, len(points), size):
        some = points[start : start + size]
        values = [value for _, value in some]
        first, last = (
            f"{one[0]:,.6g}" if one[0] % 1 else f"{one[0]:,.0f}" for one in (some[0], some[-1])
        )
        steps = f"{first} to {last}" if len(some) > 1 else first
        yield (line.name, steps, label(min(values)), label(max(values)), label(values[-1]))
