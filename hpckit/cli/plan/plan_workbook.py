"""A plan as a workbook of Excel: the sections of its document, a calculation of its cost by
formulas, and all numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from openpyxl import Workbook
from openpyxl.styles import PatternFill

from hpckit.cli.plan.plan_document import PlannedRun
from hpckit.planner.run_totals import RunTotals, full_steps
from hpckit.report.page.office.workbook_file import (
    BOLD,
    HEAD,
    fit_sheet,
    new_workbook,
    put,
    put_number,
)
from hpckit.report.page.page_document import PageDocument
from hpckit.text.json_values import plain

_NO_PRICE = "COUNT(B8:B9)=0"
_INPUT = PatternFill("solid", fgColor="FFF2CC")
COST_SHEET, NUMBER_SHEET = "Calculation", "Numbers"


def write_workbook(planned: PlannedRun, document: PageDocument, path: Path) -> None:
    """Write the workbook.

    Raises:
        OSError: it cannot be written.
    """
    made = new_workbook(document)
    if planned.totals is not None:
        _add_cost(made, planned, planned.totals)
    _add_numbers(made, planned)
    made.save(path)


def _add_cost(made: Workbook, planned: PlannedRun, totals: RunTotals) -> None:
    """Add the calculation, whose coloured cells may be changed."""
    plan, prices = planned.plan, planned.prices
    assert plan.speed is not None  # the totals are known
    sheet = made.create_sheet(COST_SHEET, 2)
    put(sheet, 1, 1, "Calculation of the cost. Change the coloured cells.", BOLD)
    inputs: tuple[tuple[str, float | None, str], ...] = (
        ("steps with the whole batch", full_steps(planned.spec, plan.world), "#,##0"),
        ("seconds of a step", plan.speed.step.total, "0.0000"),
        ("goodput", totals.goodput, "0.00%"),
        ("nodes", plan.nodes, "#,##0"),
        ("GPUs of a node", plan.world // plan.nodes, "#,##0"),
        ("price of a node-hour", prices.node, "#,##0.00"),
        ("price of a GPU-hour", prices.gpu, "#,##0.00"),
    )
    results = (
        ("hours", "=B3*B4/B5/3600", "#,##0.0"),
        ("node-hours", "=B11*B6", "#,##0.0"),
        ("GPU-hours", "=B12*B7", "#,##0.0"),
        ("cost", f'=IF({_NO_PRICE},"give a price",B12*B8+B13*B9)', "#,##0.00"),
        (
            "of which saves, restarts and repeated steps",
            f'=IF({_NO_PRICE},"",B14*(1-B5))',
            "#,##0.00",
        ),
    )
    for row, (name, value, form) in enumerate(inputs, start=3):
        put(sheet, row, 1, name, BOLD)
        put_number(sheet, row, 2, value, form).fill = _INPUT
    for row, (name, formula, form) in enumerate(results, start=11):
        put(sheet, row, 1, name, BOLD)
        cell = sheet.cell(row, 2)
        cell.value, cell.number_format = formula, form
    fit_sheet(sheet)


def _add_numbers(made: Workbook, planned: PlannedRun) -> None:
    """Add all numbers of the plan, as in the output for programs."""
    sheet = made.create_sheet(NUMBER_SHEET)
    put(sheet, 1, 1, "name", BOLD).fill = HEAD
    put(sheet, 1, 2, "value, in bytes and seconds", BOLD).fill = HEAD
    totals = None if planned.totals is None else planned.totals.record()
    record = plain({**planned.plan.record(), "totals": totals})
    for row, (name, value) in enumerate(flattened(record), start=2):
        put(sheet, row, 1, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            put_number(sheet, row, 2, value, "General")
        else:
            put(sheet, row, 2, "" if value is None else str(value))
    fit_sheet(sheet)


def flattened(record: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested records by names with dots."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{above}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{above}{key}", ", ".join(map(str, value))
        else:
            yield f"{above}{key}", value
