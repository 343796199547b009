"""The sections of a page document in a simpler form, for formats without curves. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
from hpckit.report.page.render.markdown_page import ranges
from hpckit.text.quantities import clean

Printable = TextBlock | FactsBlock | CommandsBlock | TableBlock | BarsBlock


@dataclass(frozen=True)
class PrintableSection:
    """A heading of a level from 1 on, with its blocks."""

    level: int
    title: str
    blocks: tuple[Printable, ...]


def printable_sections(document: PageDocument) -> list[PrintableSection]:
    """Return all sections in order, inner ones after those that they belong to."""
    return [found for section in document.sections for found in _flattened(section, 1)]


def one_line(text: str) -> str:
    """Return `text`, from any source, on one line and without control characters, which no format
    of these allows."""
    return clean(text).replace("\n", " ")


def _flattened(section: Section, level: int) -> Iterator[PrintableSection]:
    blocks = tuple(found for block in section.blocks for found in _printable(block))
    yield PrintableSection(level, one_line(section.title), blocks)
    for inner in section.inner:
        yield from _flattened(inner, level + 1)


def _printable(block: Block) -> Iterator[Printable]:
    match block:
        case TimelineBlock() | SharesBlock():
            return  # the table after it has the same content
        case Plot():
            yield TextBlock(block.title)
            yield ranges(block)
        case PlotsBlock(plots):
            for plot in plots:
                yield from _printable(plot)
        case _:
            yield block
