"""Of a table, the most important columns stay on a narrow terminal."""

from __future__ import annotations

from hpckit.report.terminal.fitting_columns import fitting_cells, fitting_columns


def test_a_column_stays_only_with_those_before_it() -> None:
    widths = {"name": 10, "size": 30, "age": 2}
    assert fitting_columns(widths, 100, 1) == ["name", "size", "age"]
    assert fitting_columns(widths, 20, 1) == ["name"]
    assert fitting_columns(widths, 5, 1) == []


def test_a_folded_column_needs_its_least_width() -> None:
    rows = [{"name": "x" * 80, "size": "1 GiB", "codec": "delta"}]
    importance, folded = ("name", "size", "codec"), {"name": 24}
    assert fitting_cells(rows, importance, 36, folded) == {"name", "size", "codec"}
    assert fitting_cells(rows, importance, 35, folded) == {"name", "size"}
    assert fitting_cells([], importance, 40, folded) == {"name", "size", "codec"}
