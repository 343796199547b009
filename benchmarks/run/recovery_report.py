"""A table of seconds and a JSON record of cases that are not compared with one another."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.common.arm_comparison import write_record

Parts = Mapping[str, float]
"""Seconds of one time, by the name of each part; `total` is all of them, `capacity` is none."""
_PARTS = ("detect", "queue", "meet", "load", "recompute")


def report_parts(name: str, measured: Mapping[str, Sequence[Parts]]) -> None:
    """Prints the table and writes the record `name`: medians of each part, and the total with and
    without the wait in Slurm's queue."""
    table = Table(title=f"{name}, s, medians", box=None, header_style="bold", title_justify="left")
    columns = ("total", "slowest", "other", *_PARTS, "capacity", "times")
    for column in ("fault", *columns):
        table.add_column(column, justify="left" if column == "fault" else "right")
    for case, times in measured.items():
        totals = [each["total"] for each in times]
        other = [each["total"] - each["queue"] for each in times]
        parts = [median(each[part] for each in times) for part in _PARTS]
        back = [each["capacity"] for each in times if "capacity" in each]
        told = [median(totals), max(totals), median(other), *parts]
        told_back = f"{median(back):.1f}" if back else ""
        table.add_row(case, *(f"{value:.1f}" for value in told), told_back, str(len(times)))
    Console(width=120).print(table)
    about = {case: [dict(each) for each in times] for case, times in measured.items()}
    write_record(name, {"measured": about, "machine": {"cpus": os.cpu_count()}})


def report(name: str, measured: Mapping[str, Sequence[float]]) -> None:
    """Prints the table and writes the record `name`."""
    table = Table(title=name, box=None, header_style="bold", title_justify="left")
    for column in ("fault", "s, median", "fastest", "slowest", "times"):
        table.add_column(column, justify="left" if column == "fault" else "right")
    for case, seconds in measured.items():
        values = (median(seconds), min(seconds), max(seconds))
        table.add_row(case, *(f"{value:.1f}" for value in values), str(len(seconds)))
    Console().print(table)
    write_record(name, {"measured": dict(measured), "machine": {"cpus": os.cpu_count()}})
