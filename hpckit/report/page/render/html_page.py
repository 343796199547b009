"""A page as one HTML file without scripts, other files or network access. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from hpckit.report.page.colour_meanings import of_run
from hpckit.report.page.page_document import (
    BarsBlock,
    Block,
    CommandsBlock,
    FactsBlock,
    PageDocument,
    Plot,
    PlotsBlock,
    Section,
    SharesBlock,
    TableBlock,
    TextBlock,
    TimelineBlock,
)
from hpckit.report.page.render.bars_svg import draw_bars
from hpckit.report.page.render.plot_svg import can_be_log, default_is_log, draw_plot, last_value
from hpckit.report.page.render.stylesheet import STYLE
from hpckit.report.page.render.svg_elements import escaped
from hpckit.report.page.render.timeline_svg import draw_shares, draw_timeline

MARK = '<meta name="generator" content="hpckit report">'
"""Text that identifies a page of hpckit's."""
_LONG = 24  # characters from which on a cell of words may be folded
# Nothing is loaded or run, whatever the name of a run contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html(document: PageDocument) -> str:
    """Return the whole page."""
    lines = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        MARK,
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escaped(document.title)}</title><style>{STYLE}</style></head><body>",
        f"<header><h1>{escaped(document.title)}</h1>",
        f'<p class="note">as of {escaped(document.as_of)}</p></header>',
        *_contents(document.sections),
    ]
    writer = _Writer()
    for number, section in enumerate(document.sections):
        lines += writer.section(section, 2, f"s{number}")
    return "\n".join([*lines, "</body></html>"]) + "\n"


def _contents(sections: Sequence[Section]) -> Iterator[str]:
    yield '<nav aria-label="contents"><ul>'
    for number, section in enumerate(sections):
        yield f'<li><a href="#s{number}">{escaped(section.title)}</a></li>'
    yield "</ul></nav>"


class _Writer:
    """Writes blocks; plots of a page get numbers."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def section(self, section: Section, level: int, anchor: str) -> Iterator[str]:
        title = escaped(section.title)
        named = f' id="{anchor}"' if anchor else ""
        if section.is_folded:
            yield f"<details{named}><summary>{title}</summary>"
        else:
            yield f"<section{named}><h{level}>{title}</h{level}>"
        for block in section.blocks:
            yield from self._block(block)
        for one in section.inner:
            yield from self.section(one, level + 1, "")
        yield "</details>" if section.is_folded else "</section>"

    def _block(self, block: Block) -> Iterator[str]:
        match block:
            case TextBlock(words, is_alert):
                yield f'<p class="{"alert" if is_alert else "note"}">{escaped(words)}</p>'
            case FactsBlock():
                yield from _facts(block)
            case CommandsBlock(lines):
                commands = "<br>".join(escaped(line) for line in lines)
                yield f"<pre>{commands}</pre>" if lines else ""
            case TableBlock():
                yield from _table(block)
            case Plot():
                yield from self._plot(block)
            case PlotsBlock(plots):
                yield '<div class="beside">'
                for plot in plots:
                    yield from self._plot(plot)
                yield "</div>"
            case TimelineBlock():
                yield f'<figure><div class="strip">{draw_timeline(block)}</div>'
                yield from _keys([_Key(kind, name) for kind, name in block.kinds])
                yield "</figure>"
            case SharesBlock():
                yield f'<figure><div class="shares">{draw_shares(block)}</div></figure>'
            case BarsBlock():
                title = escaped(f"{block.title}, {block.unit}")
                yield f"<figure><figcaption>{title}</figcaption>"
                yield f'<div class="strip">{draw_bars(block)}</div>'
                yield from _keys([_Key(of_run(n), name) for n, name in enumerate(block.parts)])
                yield "</figure>"

    def _plot(self, plot: Plot) -> Iterator[str]:
        yield "<figure>"
        if plot.has_choice and can_be_log(plot):
            yield from self._choice(plot)
        else:
            yield f'<div class="plot">{draw_plot(plot)}</div>'
        yield from _keys(
            [
                _Key(line.kind, line.name, last_value(line.points), line.is_faint)
                for line in plot.lines
                if line.name
            ]
        )
        yield "</figure>"

    def _choice(self, plot: Plot) -> Iterator[str]:
        """Yield the plot twice, of which the style shows the one that the reader has chosen."""
        number, log_first = next(self._numbers), default_is_log(plot)
        for kind, is_log in (("linear", False), ("logarithmic", True)):
            name, mark = f"p{number}{kind[:3]}", " checked" if is_log is log_first else ""
            yield (
                f'<input type="radio" class="to-{kind[:3]}" name="p{number}" id="{name}"{mark}>'
                f'<label for="{name}">{kind}</label>'
            )
        for kind, is_log in (("lin", False), ("log", True)):
            yield f'<div class="plot {kind}">{draw_plot(plot, is_log=is_log)}</div>'


def _facts(block: FactsBlock) -> Iterator[str]:
    yield '<dl class="key">' if block.are_key else "<dl>"
    for name, text in block.rows:
        pair = f"<dt>{escaped(name)}</dt><dd>{escaped(text)}</dd>"
        yield f"<div>{pair}</div>" if block.are_key else pair
    yield "</dl>"


@dataclass(frozen=True)
class _Key:
    """An entry of the legend of a picture."""

    kind: str
    name: str
    value: str = ""
    is_faint: bool = False


def _keys(keys: Sequence[_Key]) -> Iterator[str]:
    yield '<ul class="key-of">'
    for key in keys:
        value = f" <b>{escaped(key.value)}</b>" if key.value else ""
        kind = f"{key.kind} behind" if key.is_faint else key.kind
        yield f"<li>{_swatch(kind)}{escaped(key.name)}{value}</li>"
    yield "</ul>"


def _swatch(kind: str) -> str:
    return f'<span class="{kind} swatch"></span>'


def _table(table: TableBlock) -> Iterator[str]:
    are_words = [name in table.words for name in table.head]
    kind = " cards" if table.are_cards else " named" if table.has_names else ""
    yield f'<div class="wide{kind}"><table><thead>'
    yield _row("th", [escaped(cell) for cell in table.head], are_words, table.head)
    yield "</thead><tbody>"
    for number, row in enumerate(table.rows):
        cells = [escaped(cell) for cell in row]
        if table.kinds:
            cells[0] = _swatch(table.kinds[number]) + cells[0]
        yield _row("td", cells, are_words, row, table.head if table.are_cards else ())
    yield "</tbody></table></div>"


def _row(
    tag: str,
    cells: Sequence[str],
    are_words: Sequence[bool],
    raw: Sequence[str],
    names: Sequence[str] = (),
) -> str:
    """Return a row; cells that have names show them where rows are cards."""
    made = ""
    for at, (cell, is_word, text) in enumerate(zip(cells, are_words, raw, strict=True)):
        kind = f' class="word{" long" if len(text) > _LONG else ""}"' if is_word else ""
        named = f' data-name="{escaped(names[at])}"' if names and text else ""
        made += f"<{tag}{kind}{named}>{cell}</{tag}>"
    return f"<tr>{made}</tr>"
