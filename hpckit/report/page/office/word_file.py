"""A page document as a file of Word (.docx), by python-docx."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import docx
from docx.document import Document
from docx.enum.text import WD_ALIGN_PARAGRAPH
from docx.oxml import OxmlElement
from docx.shared import Cm, Pt, RGBColor

from hpckit.report.page.office.bar_picture import draw_png
from hpckit.report.page.office.printable_sections import Printable, one_line, printable_sections
from hpckit.report.page.page_document import (
    BarsBlock,
    CommandsBlock,
    FactsBlock,
    PageDocument,
    TableBlock,
    TextBlock,
)

_WIDE_CM = 17.0  # of a page of A4 without its margins
_NAMES_CM = 4.0
_SMALL = Pt(8.5)
_ALERT = RGBColor(0xB0, 0x3A, 0x00)
_MANY = 6  # columns from which on letters are smaller


def write_word(document: PageDocument, path: Path) -> None:
    """Write the document.

    Raises:
        OSError: it cannot be written.
    """
    made = docx.Document()
    for section in made.sections:
        section.page_width, section.page_height = Cm(21.0), Cm(29.7)
        section.left_margin = section.right_margin = Cm((21.0 - _WIDE_CM) / 2)
        section.top_margin = section.bottom_margin = Cm(2.0)
    made.styles["Normal"].font.size = Pt(10)
    made.core_properties.title = one_line(document.title)
    made.core_properties.author = "hpckit"
    made.add_heading(one_line(document.title), 0)
    made.add_paragraph(f"as of {one_line(document.as_of)}")
    for part in printable_sections(document):
        made.add_heading(part.title, part.level)
        for block in part.blocks:
            _add(made, block)
    made.save(str(path))


def _add(made: Document, block: Printable) -> None:
    match block:
        case TextBlock(words, is_alert):
            run = made.add_paragraph().add_run(one_line(words))
            if is_alert:
                run.bold = True
                run.font.color.rgb = _ALERT
        case CommandsBlock(lines):
            for line in lines:
                made.add_paragraph().add_run(one_line(line)).font.name = "Courier New"
        case FactsBlock(rows, _):
            names = (_NAMES_CM, _WIDE_CM - _NAMES_CM)
            _add_table(made, rows, names, bold=[True, False], right=[False, False])
        case TableBlock():
            columns = len(block.head)
            widths = tuple(_WIDE_CM / columns for _ in block.head)
            right = [name not in block.words for name in block.head]
            small = columns >= _MANY
            cells = (block.head, *block.rows)
            _add_table(made, cells, widths, bold=None, right=right, is_small=small)
        case BarsBlock():
            made.add_picture(BytesIO(draw_png(block)), width=Cm(_WIDE_CM))


def _add_table(
    made: Document,
    rows: Sequence[Sequence[str]],
    widths: Sequence[float],
    *,
    bold: Sequence[bool] | None,
    right: Sequence[bool],
    is_small: bool = False,
) -> None:
    """Add a table. `bold`: columns of names; None: the first row is the head."""
    table = made.add_table(len(rows), len(widths), "Table Grid")
    table.autofit = False
    if bold is None:
        head = table.rows[0]._tr.get_or_add_trPr()
        head.append(OxmlElement("w:tblHeader"))  # repeated on each page
    for column, wide in zip(table.columns, widths, strict=True):
        column.width = Cm(wide)
    for number, (row, given) in enumerate(zip(table.rows, rows, strict=True)):
        for column, (cell, text) in enumerate(zip(row.cells, given, strict=True)):
            cell.width = Cm(widths[column])
            paragraph = cell.paragraphs[0]
            run = paragraph.add_run(one_line(text))
            run.bold = number == 0 if bold is None else bold[column]
            if is_small:
                run.font.size = _SMALL
            if number == 0 and bold is None:
                paragraph.paragraph_format.keep_with_next = True  # a head is not alone on a page
            if right[column]:
                paragraph.alignment = WD_ALIGN_PARAGRAPH.RIGHT
    made.add_paragraph()
