"""A page document as slides of PowerPoint (.pptx), by python-pptx, with native charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pptx
from pptx.chart.chart import Chart
from pptx.chart.data import ChartData
from pptx.dml.color import RGBColor
from pptx.enum.chart import XL_CHART_TYPE, XL_LEGEND_POSITION
from pptx.enum.text import PP_ALIGN
from pptx.presentation import Presentation
from pptx.slide import Slide
from pptx.util import Emu, Inches, Pt

from hpckit.report.page.office.chart_colours import colour
from hpckit.report.page.office.printable_sections import Printable, one_line, printable_sections
from hpckit.report.page.page_document import (
    BarsBlock,
    CommandsBlock,
    FactsBlock,
    PageDocument,
    TableBlock,
    TextBlock,
)
from hpckit.report.page.render.plot_axes import label

_WIDE, _HIGH = Inches(13.333), Inches(7.5)
_LEFT, _TOP, _BOTTOM = Inches(0.6), Inches(1.25), Inches(7.1)
_INNER_WIDE = Inches(12.1)
_TITLE_ONLY = 5  # number of the layout in python-pptx's own template
_LETTERS, _SMALL = Pt(14), Pt(11)
_ALERT = RGBColor(0xB0, 0x3A, 0x00)
_TEXT_HIGH, _ROW_HIGH, _GAP = Inches(0.31), Inches(0.34), Inches(0.12)
"""Heights of a line of text, of a line of a table, and between blocks."""
_LINE_LETTERS = 115
_CHART_HIGH = Inches(3.6)
"""Least height of a chart."""

Row = tuple[str, str, bool]
"""A name, a text, and whether it is an alert."""


def write_slides(document: PageDocument, path: Path) -> None:
    """Write the slides: one with the title, then each section on as many as it takes.

    Raises:
        OSError: it cannot be written.
    """
    made = pptx.Presentation()
    made.slide_width, made.slide_height = _WIDE, _HIGH
    made.core_properties.title = one_line(document.title)
    made.core_properties.author = "hpckit"
    cover = SlideFlow(made, one_line(document.title))
    cover.add_texts([("as of", one_line(document.as_of), False)])
    for section in printable_sections(document):
        flow = SlideFlow(made, section.title)
        for block in section.blocks:
            if isinstance(block, TableBlock):
                flow.add_table(block)
            elif isinstance(block, BarsBlock):
                flow.add_chart(block)
            else:
                flow.add_texts(list(_rows(block)))
    made.save(str(path))


def _rows(block: Printable) -> Iterator[Row]:
    match block:
        case TextBlock(words, is_alert):
            yield "", one_line(words), is_alert
        case CommandsBlock(lines):
            yield from (("", one_line(line), False) for line in lines)
        case FactsBlock(rows, _):
            yield from ((one_line(name), one_line(text), False) for name, text in rows)


class SlideFlow:
    """Puts the blocks of a section below each other, on further slides where one is full."""

    def __init__(self, made: Presentation, title: str) -> None:
        self._made, self._title = made, title
        self._slide: Slide | None = None
        self._top = int(_TOP)

    def add_texts(self, rows: Sequence[Row]) -> None:
        """Add lines of text."""
        waiting: list[Row] = []
        high = 0
        for row in rows:
            lines = 1 + (len(row[0]) + len(row[1])) // _LINE_LETTERS
            if high + lines * _TEXT_HIGH > self._left():
                self._put_texts(waiting, high)
                self._next_slide()
                waiting, high = [], 0
            waiting.append(row)
            high += lines * _TEXT_HIGH
        self._put_texts(waiting, high)

    def add_table(self, block: TableBlock) -> None:
        """Add a table: on a further slide if it is whole there, else with its head repeated where
        it goes on."""
        shares = _column_shares(block)
        letters = [max(1.0, share * _LINE_LETTERS * 1.2) for share in shares]
        highs = [
            int(_ROW_HIGH)
            * max(1 + int(len(text) / most) for text, most in zip(row, letters, strict=True))
            for row in block.rows
        ]
        if self._left() < _ROW_HIGH + sum(highs) <= _BOTTOM - _TOP:
            self._next_slide()
        waiting: list[Sequence[str]] = []
        high = int(_ROW_HIGH)
        for row, row_high in zip(block.rows, highs, strict=True):
            if high + row_high > self._left():
                self._put_table(block, waiting, shares, high)
                self._next_slide()
                waiting, high = [], int(_ROW_HIGH)
            waiting.append(row)
            high += row_high
        self._put_table(block, waiting, shares, high)

    def add_chart(self, block: BarsBlock) -> None:
        """Add a chart, which has the rest of the slide."""
        text = f"{block.title}, {block.unit}"
        if block.limit is not None:
            name, value = block.limit
            text += f" ({name}: {label(value)} {block.unit})"
        if self._left() < _CHART_HIGH + _TEXT_HIGH:
            self._next_slide()
        self.add_texts([("", one_line(text), False)])
        data = ChartData()
        bars = [*reversed(block.bars)]  # they are drawn from bottom to top
        data.categories = [one_line(name) for name, _ in bars]
        for number, part in enumerate(block.parts):
            data.add_series(one_line(part), [values[number] for _, values in bars])
        high = self._left()
        kind = XL_CHART_TYPE.BAR_STACKED
        place = (_LEFT, Emu(self._top), _INNER_WIDE, Emu(high))
        frame = self._here().shapes.add_chart(kind, *place, data)
        _style_chart(frame.chart)  # type: ignore[attr-defined]
        self._top += high

    def _left(self) -> int:
        return int(_BOTTOM) - self._top

    def _next_slide(self) -> None:
        if self._top > _TOP:
            self._slide, self._top = None, int(_TOP)

    def _here(self) -> Slide:
        """Return the present slide, which is made when something is put on it."""
        if self._slide is None:
            self._slide = _new_slide(self._made, self._title)
        return self._slide

    def _put_texts(self, rows: Sequence[Row], high: int) -> None:
        if not rows:
            return
        place = (_LEFT, Emu(self._top), _INNER_WIDE, Emu(high))
        frame = self._here().shapes.add_textbox(*place).text_frame
        frame.word_wrap = True
        for number, (name, text, is_alert) in enumerate(rows):
            paragraph = frame.paragraphs[0] if number == 0 else frame.add_paragraph()
            paragraph.space_after = Pt(4)
            if name:
                head = paragraph.add_run()
                head.text, head.font.bold, head.font.size = f"{name}: ", True, _LETTERS
            run = paragraph.add_run()
            run.text, run.font.size = text, _LETTERS
            if is_alert:
                run.font.bold, run.font.color.rgb = True, _ALERT
        self._top += high + int(_GAP)

    def _put_table(
        self,
        block: TableBlock,
        rows: Sequence[Sequence[str]],
        shares: Sequence[float],
        high: int,
    ) -> None:
        if not rows:
            return
        place = (_LEFT, Emu(self._top), _INNER_WIDE, Emu(high))
        shape = self._here().shapes.add_table(len(rows) + 1, len(block.head), *place)
        table = shape.table
        for column, share in enumerate(shares):
            table.columns[column].width = Emu(int(_INNER_WIDE * share))
        for at, row in enumerate((block.head, *rows)):
            for column, text in enumerate(row):
                cell = table.cell(at, column)
                cell.text = one_line(text)
                paragraph = cell.text_frame.paragraphs[0]
                paragraph.font.size = _SMALL
                is_word = block.head[column] in block.words
                paragraph.alignment = PP_ALIGN.LEFT if is_word else PP_ALIGN.RIGHT
        self._top += high + int(_GAP)


def _new_slide(made: Presentation, title: str) -> Slide:
    slide: Slide = made.slides.add_slide(made.slide_layouts[_TITLE_ONLY])
    shape = slide.shapes.title
    assert shape is not None
    shape.left, shape.top, shape.width, shape.height = _LEFT, Inches(0.35), _INNER_WIDE, Inches(0.8)
    shape.text_frame.text = title
    paragraph = shape.text_frame.paragraphs[0]
    paragraph.font.size, paragraph.font.bold = Pt(26), True
    paragraph.alignment = PP_ALIGN.LEFT
    return slide


def _column_shares(block: TableBlock) -> list[float]:
    """Return how the width is divided among columns: by their longest texts, within limits."""
    rows = (block.head, *block.rows)
    wide = [
        min(45, max(8, *(len(row[column]) for row in rows))) for column in range(len(block.head))
    ]
    return [one / sum(wide) for one in wide]


def _style_chart(chart: Chart) -> None:
    chart.has_title, chart.has_legend = False, True
    assert chart.legend is not None
    chart.legend.position, chart.legend.include_in_layout = XL_LEGEND_POSITION.BOTTOM, False
    chart.font.size = _SMALL
    chart.value_axis.minimum_scale = 0
    chart.plots[0].gap_width = 60
    for number, series in enumerate(chart.plots[0].series):
        series.format.fill.solid()
        series.format.fill.fore_color.rgb = RGBColor(*colour(number))
