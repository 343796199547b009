"""Interleaved comparison of several arms: ratios to a base arm, a table and a JSON record."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.common.machine import steal
from hpckit.submit.submission_files import versions

RESULTS = Path(__file__).parents[1] / "results"
Measure = Callable[[], float]


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of some measurements."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f}  ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class ArmComparison:
    """The measurements of several arms: `measured[arm][round]`, all in `unit`."""

    name: str
    base: str
    unit: str
    measured: Mapping[str, Sequence[float]]

    def spread(self, arm: str) -> Spread:
        """Returns the spread of the measurements of `arm`."""
        return _spread(self.measured[arm])

    def ratio(self, arm: str) -> Spread:
        """Returns the spread of the ratios of `arm` to the base arm of the same round."""
        pairs = zip(self.measured[arm], self.measured[self.base], strict=True)
        return _spread([one / base for one, base in pairs])


def interleave(arms: Mapping[str, Measure], rounds: int) -> dict[str, list[float]]:
    """Measures every arm once a round; each round begins with another arm."""
    names = list(arms)
    measured: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            measured[name].append(arms[name]())
    return measured


def report(comparison: ArmComparison, settings: Mapping[str, object]) -> Path:
    """Prints the table and writes the record; returns the path of the record."""
    table = Table(title=comparison.name, box=None, header_style="bold", title_justify="left")
    table.add_column("arm")
    table.add_column(comparison.unit, justify="right")
    table.add_column(f"ratio to {comparison.base}", justify="right")
    for arm in comparison.measured:
        ratio = "" if arm == comparison.base else str(comparison.ratio(arm))
        table.add_row(arm, str(comparison.spread(arm)), ratio)
    Console().print(table)
    return write_record(
        comparison.name,
        {
            **asdict(comparison),
            "settings": dict(settings),
            "ratios": {a: asdict(comparison.ratio(a)) for a in comparison.measured},
            "machine": {"cpus": os.cpu_count(), "processor": platform.processor()},
        },
    )


def write_record(name: str, found: Mapping[str, object]) -> Path:
    """Writes `results/<name>.json` with the time, the stolen time and the versions, and prints and
    returns its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    record = {**found, "steal": steal(), "time": time.time(), "versions": versions()}
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"record: {path}")
    return path


def _spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))
