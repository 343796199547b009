"""A page as one HTML file without scripts, other files or network access. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.report.page.page_document import (
    Block,
    CommandsBlock,
    FactsBlock,
    PageDocument,
    Plot,
    Section,
    SharesBlock,
    TableBlock,
    TextBlock,
    TimelineBlock,
)
from hpckit.report.page.render.plot_svg import draw_plot, kind_of
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
        f"<h1>{escaped(document.title)}</h1>",
        f'<p class="note">as of {escaped(document.as_of)}</p>',
    ]
    for section in document.sections:
        lines += _section(section, 2)
    return "\n".join([*lines, "</body></html>"]) + "\n"


def _section(section: Section, level: int) -> Iterator[str]:
    title = escaped(section.title)
    if section.is_folded:
        yield f"<details><summary>{title}</summary>"
    else:
        yield f"<section><h{level}>{title}</h{level}>"
    for block in section.blocks:
        yield from _block(block)
    for one in section.inner:
        yield from _section(one, level + 1)
    yield "</details>" if section.is_folded else "</section>"


def _block(block: Block) -> Iterator[str]:
    match block:
        case TextBlock(words, is_alert):
            yield f'<p class="{"alert" if is_alert else "note"}">{escaped(words)}</p>'
        case FactsBlock(rows, are_key):
            yield '<dl class="key">' if are_key else "<dl>"
            around = ("<div>", "</div>") if are_key else ("", "")
            for name, text in rows:
                pair = f"<dt>{escaped(name)}</dt><dd>{escaped(text)}</dd>"
                yield f"{around[0]}{pair}{around[1]}"
            yield "</dl>"
        case CommandsBlock(lines):
            yield f"<pre>{'<br>'.join(escaped(line) for line in lines)}</pre>" if lines else ""
        case TableBlock():
            yield from _table(block)
        case Plot():
            yield from _plot(block)
        case TimelineBlock():
            yield f'<figure><div class="strip">{draw_timeline(block)}</div>'
            yield from _keys([(kind, name) for kind, name in block.kinds])
            yield "</figure>"
        case SharesBlock():
            yield f"<figure>{draw_shares(block)}</figure>"


def _plot(plot: Plot) -> Iterator[str]:
    yield f'<figure><div class="plot">{draw_plot(plot)}</div>'
    yield from _keys([(kind_of(line.colour), line.name) for line in plot.lines])
    if plot.marks:
        what = "Dashed: interruptions, each with the number of the generation that it ended."
        yield f"<figcaption>{what}</figcaption>"
    yield "</figure>"


def _keys(kinds: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield '<ul class="key-of">'
    for kind, name in kinds:
        yield f"<li>{_swatch(kind)}{escaped(name)}</li>"
    yield "</ul>"


def _swatch(kind: str) -> str:
    return f'<span class="{kind} swatch"></span>'


def _table(table: TableBlock) -> Iterator[str]:
    are_words = [name in table.words for name in table.head]
    yield '<div class="wide"><table><thead>'
    yield _row("th", [escaped(cell) for cell in table.head], are_words, table.head)
    yield "</thead><tbody>"
    for number, row in enumerate(table.rows):
        cells = [escaped(cell) for cell in row]
        if table.swatches:
            cells[0] = _swatch(kind_of(number)) + cells[0]
        yield _row("td", cells, are_words, row)
    yield "</tbody></table></div>"


def _row(tag: str, cells: Sequence[str], are_words: Sequence[bool], raw: Sequence[str]) -> str:
    made = ""
    for cell, is_word, text in zip(cells, are_words, raw, strict=True):
        kind = f' class="word{" long" if len(text) > _LONG else ""}"' if is_word else ""
        made += f"<{tag}{kind}>{cell}</{tag}>"
    return f"<tr>{made}</tr>"
