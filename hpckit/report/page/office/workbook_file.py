"""A page document as a workbook of Excel (.xlsx), by openpyxl, with numbers that Excel can add up
and native charts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from openpyxl import Workbook
from openpyxl.cell.cell import Cell
from openpyxl.chart import BarChart, Reference
from openpyxl.styles import Alignment, Font, PatternFill
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.properties import PageSetupProperties
from openpyxl.worksheet.worksheet import Worksheet

from hpckit.report.page.office.chart_colours import hexadecimal
from hpckit.report.page.office.printable_sections import (
    Printable,
    PrintableSection,
    one_line,
    printable_sections,
)
from hpckit.report.page.page_document import (
    BarsBlock,
    CommandsBlock,
    FactsBlock,
    PageDocument,
    TableBlock,
    TextBlock,
)

_TITLE_LETTERS = 31  # at most, of the title of a sheet
_NUMBER = re.compile(r"-?\d{1,3}(,\d{3})*(\.\d+)?|-?\d+(\.\d+)?")
_PERCENT = re.compile(r"-?\d+(\.\d+)?\s?%")
_WIDEST, _NARROWEST = 45, 10  # letters of a column
_CHART_ROWS = 16
_LINE_POINTS = 15.0  # height of a line
BOLD = Font(bold=True)
HEAD = PatternFill("solid", fgColor="F3F5F7")
_RIGHT = Alignment(horizontal="right", vertical="top", wrap_text=True)
_ALERT = Font(bold=True, color="B03A00")


def new_workbook(document: PageDocument) -> Workbook:
    """Return a workbook with a sheet for each section."""
    made = Workbook()
    made.properties.title = one_line(document.title)
    made.properties.creator = "hpckit"
    first = made.active
    assert isinstance(first, Worksheet)
    sections = printable_sections(document)
    for number, section in enumerate(sections):
        sheet = first if number == 0 else made.create_sheet()
        sheet.title = sheet_title(section.title, [one.title for one in made if one is not sheet])
        if number == 0:
            put(sheet, 1, 1, document.title, Font(bold=True, size=14))
            put(sheet, 2, 1, f"as of {document.as_of}")
        _fill(sheet, section, 4 if number == 0 else 1)
    return made


def sheet_title(title: str, others: Sequence[str]) -> str:
    """Return a title that Excel allows for a sheet, and that no other sheet has."""
    short = re.sub(r"[\[\]:*?/\\]", " ", one_line(title)).strip("' ")[:_TITLE_LETTERS] or "Sheet"
    found, number = short, 2
    while found.lower() in (other.lower() for other in others):
        ending = f" {number}"
        found, number = short[: _TITLE_LETTERS - len(ending)] + ending, number + 1
    return found


def put(sheet: Worksheet, row: int, column: int, text: str, font: Font | None = None) -> Cell:
    """Write a text to a cell, and return the cell; a text that begins with "=" is no formula."""
    cell = sheet.cell(row, column)
    assert isinstance(cell, Cell)
    cell.value = one_line(text)
    cell.data_type = "s"
    cell.alignment = Alignment(wrap_text=True, vertical="top")
    if font is not None:
        cell.font = font
    return cell


def put_number(sheet: Worksheet, row: int, column: int, value: float | None, form: str) -> Cell:
    """Write a number to a cell with Excel's format for it, and return the cell; None: it stays
    empty."""
    cell = sheet.cell(row, column)
    assert isinstance(cell, Cell)
    cell.value, cell.number_format = value, form
    cell.alignment = Alignment(vertical="top")
    return cell


def fit_sheet(sheet: Worksheet) -> None:
    """Make each column as wide as its longest text, within limits, and each row as high as its
    cells need; printed, the sheet has the width of a page."""
    merged = {cells.min_row for cells in sheet.merged_cells.ranges}
    high: dict[int, int] = {}
    for column in sheet.columns:
        texts = {
            cell.row or 0: len(str(cell.value))
            for cell in column
            if cell.value is not None and cell.row not in merged and cell.data_type != "f"
        }
        wide = min(_WIDEST, max([_NARROWEST, *texts.values()]) + 2)
        sheet.column_dimensions[get_column_letter(column[0].column or 1)].width = wide
        for row, letters in texts.items():
            high[row] = max(high.get(row, 1), -(-letters // (wide - 2)))
    for row, lines in high.items():
        if lines > 1:
            sheet.row_dimensions[row].height = _LINE_POINTS * lines
    sheet.page_setup.orientation, sheet.page_setup.paperSize = "landscape", sheet.PAPERSIZE_A4
    sheet.page_setup.fitToWidth, sheet.page_setup.fitToHeight = 1, 0
    sheet.sheet_properties.pageSetUpPr = PageSetupProperties(fitToPage=True)


def _fill(sheet: Worksheet, section: PrintableSection, row: int) -> None:
    put(sheet, row, 1, section.title, Font(bold=True, size=12))
    row += 2
    for block in section.blocks:
        row = _add(sheet, block, row) + 1
    fit_sheet(sheet)


def _add(sheet: Worksheet, block: Printable, row: int) -> int:
    """Add a block, and return the first row below it."""
    match block:
        case TextBlock(words, is_alert):
            put(sheet, row, 1, words, _ALERT if is_alert else None)
            sheet.merge_cells(start_row=row, end_row=row, start_column=1, end_column=6)
            sheet.row_dimensions[row].height = _LINE_POINTS * (1 + len(words) // 80)
            return row + 1
        case CommandsBlock(lines):
            for line in lines:
                put(sheet, row, 1, line)
                row += 1
            return row
        case FactsBlock(rows, _):
            for name, text in rows:
                put(sheet, row, 1, name, BOLD)
                _put_value(sheet, row, 2, text)
                row += 1
            return row
        case TableBlock():
            return _add_table(sheet, block, row)
        case BarsBlock():
            return _add_chart(sheet, block, row)


def _put_value(sheet: Worksheet, row: int, column: int, text: str) -> None:
    """Write a text as the number that it is, if it is one."""
    given = text.strip()
    if _PERCENT.fullmatch(given):
        decimals = len(given.rstrip("% ").partition(".")[2])
        form = f"0.{'0' * decimals}%" if decimals else "0%"
        put_number(sheet, row, column, round(float(given.rstrip("% ")) / 100, decimals + 2), form)
    elif _NUMBER.fullmatch(given):
        decimals = len(given.partition(".")[2])
        form = f"#,##0.{'0' * decimals}" if decimals else "#,##0"
        put_number(sheet, row, column, float(given.replace(",", "")), form)
    else:
        put(sheet, row, column, text)


def _add_table(sheet: Worksheet, block: TableBlock, row: int) -> int:
    for column, name in enumerate(block.head, start=1):
        cell = put(sheet, row, column, name, BOLD)
        cell.fill = HEAD
        if name not in block.words:
            cell.alignment = _RIGHT
    for given in block.rows:
        row += 1
        for column, text in enumerate(given, start=1):
            _put_value(sheet, row, column, text)
            if block.head[column - 1] not in block.words:
                sheet.cell(row, column).alignment = _RIGHT
    return row + 1


def _add_chart(sheet: Worksheet, block: BarsBlock, row: int) -> int:
    """Add the numbers of the bars, and a chart of them."""
    put(sheet, row, 1, block.unit, BOLD).fill = HEAD
    for column, part in enumerate(block.parts, start=2):
        put(sheet, row, column, part, BOLD).fill = HEAD
    for at, (name, values) in enumerate(block.bars, start=row + 1):
        put(sheet, at, 1, name)
        for column, value in enumerate(values, start=2):
            put_number(sheet, at, column, value, "0.000")
    last, end = row + len(block.bars), 1 + len(block.parts)
    chart = BarChart()
    chart.type, chart.grouping, chart.overlap = "bar", "stacked", 100
    chart.title, chart.y_axis.title = one_line(block.title), one_line(block.unit)
    chart.add_data(Reference(sheet, 2, row, end, last), titles_from_data=True)
    chart.set_categories(Reference(sheet, 1, row + 1, 1, last))
    for number, series in enumerate(chart.series):
        series.graphicalProperties.solidFill = hexadecimal(number)
    chart.x_axis.delete = chart.y_axis.delete = False
    chart.x_axis.scaling.orientation = "maxMin"  # from top to bottom
    chart.y_axis.scaling.min = 0
    chart.height, chart.width = 8, 20  # centimetres
    sheet.add_chart(chart, f"A{last + 2}")
    return last + 2 + _CHART_ROWS
