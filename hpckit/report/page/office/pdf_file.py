"""A page document as PDF, by fpdf2. It has the letters of Latin-1; others are written as "?"."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fpdf import FPDF
from fpdf.enums import XPos, YPos
from fpdf.fonts import FontFace

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
from hpckit.report.page.render.bars_svg import longest
from hpckit.report.page.render.plot_axes import label

_FONT, _FIXED = "Helvetica", "Courier"  # fonts that every reader of PDF has
_SIZE, _SMALL = 10, 8  # points
_LINE, _BAR = 5.0, 5.0  # millimetres
_HEAD_ROOM = 45.0  # millimetres that have to be left for a heading and what follows it
_INK, _SOFT, _ALERT, _LIMIT = (29, 33, 37), (90, 99, 108), (176, 58, 0), (179, 38, 30)
_MANY = 6  # columns from which on letters are smaller
_LIKE = str.maketrans({"≥": ">=", "≤": "<=", "–": "-", "—": "-", "’": "'", "→": "->", "≈": "~"})


class _NumberedPages(FPDF):
    """A document whose pages have their number at the bottom."""

    def footer(self) -> None:
        self.set_y(-12)
        self.set_font(_FONT, size=_SMALL)
        self.set_text_color(*_SOFT)
        self.cell(0, _LINE, str(self.page_no()), align="C")


def write_pdf(document: PageDocument, path: Path) -> None:
    """Write the document.

    Raises:
        OSError: it cannot be written.
    """
    pdf = _NumberedPages(format="A4")
    pdf.set_auto_page_break(True, margin=18)
    pdf.set_title(_latin(document.title))
    pdf.set_creator("hpckit")
    pdf.add_page()
    _write(pdf, document.title, 18, bold=True)
    _write(pdf, f"as of {document.as_of}", _SIZE, ink=_SOFT)
    for section in printable_sections(document):
        _keep_together(pdf, _HEAD_ROOM)
        pdf.ln(4)
        pdf.start_section(_latin(section.title), section.level - 1)
        _write(pdf, section.title, 15 - 2 * section.level, bold=True)
        for block in section.blocks:
            _add(pdf, block)
    pdf.output(str(path))


def _latin(text: str) -> str:
    return one_line(text).translate(_LIKE).encode("latin-1", "replace").decode("latin-1")


def _write(
    pdf: FPDF, text: str, points: float, *, bold: bool = False, ink: Sequence[int] = _INK
) -> None:
    pdf.set_font(_FONT, "B" if bold else "", points)
    pdf.set_text_color(ink[0], ink[1], ink[2])
    high = _LINE * max(1.0, points / _SIZE)
    pdf.multi_cell(0, high, _latin(text), align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.ln(1)


def _keep_together(pdf: FPDF, high: float) -> None:
    """Begin a new page unless so many millimetres are left of this one."""
    if pdf.will_page_break(high):
        pdf.add_page()


def _add(pdf: FPDF, block: Printable) -> None:
    match block:
        case TextBlock(words, is_alert):
            _write(pdf, words, _SIZE, bold=is_alert, ink=_ALERT if is_alert else _INK)
        case CommandsBlock(lines):
            pdf.set_font(_FIXED, size=_SIZE - 1)
            pdf.set_text_color(*_INK)
            for line in lines:
                pdf.multi_cell(0, _LINE, _latin(line), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        case FactsBlock(rows, _):
            _add_table(pdf, rows, (22, 78), ("L", "L"), _SIZE, has_head=False)
        case TableBlock():
            many = len(block.head) >= _MANY
            cells = (block.head, *block.rows)
            aligned = ["L" if name in block.words else "R" for name in block.head]
            _add_table(
                pdf, cells, _shares(cells), aligned, _SMALL if many else _SIZE, has_head=True
            )
        case BarsBlock():
            _add_bars(pdf, block)


def _shares(rows: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Return how the width is divided among columns: by their longest texts, within limits."""
    return tuple(
        min(45, max(8, *(len(row[column]) for row in rows))) for column in range(len(rows[0]))
    )


def _add_table(
    pdf: FPDF,
    rows: Sequence[Sequence[str]],
    widths: tuple[int, ...],
    aligned: Sequence[str],
    points: float,
    *,
    has_head: bool,
) -> None:
    if not rows:
        return
    pdf.set_font(_FONT, size=points)
    pdf.set_text_color(*_INK)
    pdf.set_draw_color(200, 205, 210)
    pdf.set_fill_color(255, 255, 255)  # cells are filled with it
    bold = FontFace(emphasis="BOLD")
    with pdf.table(
        col_widths=widths,
        text_align=tuple(aligned),
        line_height=_LINE,
        padding=0.8,
        headings_style=bold,
        first_row_as_headings=has_head,
        borders_layout="HORIZONTAL_LINES",
    ) as table:
        for given in rows:
            row = table.row()
            for column, text in enumerate(given):
                is_name = not has_head and column == 0
                row.cell(_latin(text), style=bold if is_name else None)
    pdf.ln(2)


def _add_bars(pdf: FPDF, block: BarsBlock) -> None:
    row = _LINE + _BAR + 2
    _keep_together(pdf, row * len(block.bars) + 20)
    most, left, wide = longest(block), pdf.l_margin, pdf.epw
    pdf.set_font(_FONT, size=_SMALL)
    top = pdf.get_y() + (_LINE if block.limit else 0.0)
    for number, (name, values) in enumerate(block.bars):
        y, at = top + number * row, 0.0
        pdf.set_text_color(*_INK)
        pdf.text(left, y + 3.5, _latin(f"{name}: {label(sum(values))} {block.unit}"))
        for part, value in enumerate(values):
            pdf.set_fill_color(*colour(part))
            if value > 0:
                pdf.rect(left + at / most * wide, y + _LINE, value / most * wide, _BAR, "F")
            at += value
    bottom = top + row * len(block.bars)
    if block.limit is not None:
        name, value = block.limit
        text, x = _latin(f"{name}: {label(value)} {block.unit}"), left + value / most * wide
        pdf.set_draw_color(*_LIMIT)
        pdf.set_text_color(*_LIMIT)
        pdf.line(x, top - 1, x, bottom - 2)
        pdf.text(x - pdf.get_string_width(text) if x > left + wide / 2 else x, top - 2, text)
    _add_keys(pdf, block, bottom + 1)


def _add_keys(pdf: FPDF, block: BarsBlock, y: float) -> None:
    pdf.set_text_color(*_INK)
    x = pdf.l_margin
    for number, part in enumerate(block.parts):
        wide = pdf.get_string_width(_latin(part)) + 9
        if x + wide > pdf.l_margin + pdf.epw:
            x, y = pdf.l_margin, y + _LINE
        pdf.set_fill_color(*colour(number))
        pdf.rect(x, y, 3, 3, "F")
        pdf.text(x + 4, y + 2.6, _latin(part))
        x += wide
    pdf.set_y(y + _LINE + 2)
