"""A table of seconds, and a JSON record, of cases that are not compared with one another."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.records import write_record


def report(name: str, measured: Mapping[str, Sequence[float]]) -> None:
    """Print the table and write the record, both of this name."""
    table = Table(title=name, box=None, header_style="bold", title_justify="left")
    for column in ("fault", "s, median", "fastest", "slowest", "times"):
        table.add_column(column, justify="left" if column == "fault" else "right")
    for case, seconds in measured.items():
        values = (median(seconds), min(seconds), max(seconds))
        table.add_row(case, *(f"{value:.1f}" for value in values), str(len(seconds)))
    Console().print(table)
    write_record(name, {"measured": dict(measured), "machine": {"cpus": os.cpu_count()}})
