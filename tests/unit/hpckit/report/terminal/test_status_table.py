"""The tables of `hpckit status` and of a run's summary fit on narrow terminals, whole."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hpckit.events.event_log import EventLog
from hpckit.report.overview import Overview, Queue, read_overview
from hpckit.report.run_state import RunState
from hpckit.report.terminal.run_summary import show
from hpckit.report.terminal.status_table import table_of
from hpckit.slurm.squeue import SlurmJob
from tests.unit.hpckit.report.sample_runs import submitted

NOW = 330.0
WIDTHS = (40, 50, 60, 69, 80, 100, 200)
LONG = "gpt-pretraining-on-all-of-the-web-1a2b3c4d"


def text_of(table: Any, width: int) -> list[str]:
    console = Console(width=width, file=StringIO(), record=True)
    console.print(table)
    return console.export_text().splitlines()


@pytest.fixture
def runs(tmp_path: Path) -> list[Overview]:
    known: dict[str, Any] = {"steps": 100_000, "step": 81_234, "saved_step": 81_000, "step_s": 0.5}
    known |= {"step_time": 329.0, "generation": 12}
    found = []
    for name in ("gpt-1a2b3c4d", LONG):
        it = read_overview(submitted(tmp_path / name), Queue())
        jobs = tuple(job(number) for number in ("1234567", "1234568"))
        progress = replace(it.progress, **known)
        found.append(replace(it, state=RunState.RUNNING, progress=progress, jobs=jobs))
    return found


def job(number: str) -> SlurmJob:
    return SlurmJob(number, "PENDING", None, None, "1:00", 1, "p", "", "", "Priority", "first")


@pytest.mark.parametrize("width", WIDTHS)
def test_every_cell_of_the_status_is_whole(runs: list[Overview], width: int) -> None:
    shown = table_of(runs, NOW, width)
    lines = text_of(shown.table, width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert "".join(line[:12].strip() for line in lines).startswith("rungpt-1a2b3c4d")
    heads = lines[0].split()
    for cell in {"state": "running", "step": "81,234/100,000"}.values():
        assert cell in lines[1]
    assert ("last" in heads) == ("1 s" in lines[1])
    left_out = re.search(r"without (.*), for which", shown.legend)
    assert bool(left_out) == (len(heads) < 8)


def test_a_run_whose_number_of_steps_is_unknown_has_its_step(runs: list[Overview]) -> None:
    """As a program whose steps are read from its output."""
    found = [replace(it, progress=replace(it.progress, steps=None)) for it in runs[:1]]
    assert text_of(table_of(found, NOW, 80).table, 80)[1].split()[2] == "81,234"


def test_columns_are_left_out_in_a_stated_order(runs: list[Overview]) -> None:
    order = ["jobs", "gen", "rate", "saved", "last"]
    seen = []
    for width in range(120, 39, -1):
        heads = text_of(table_of(runs, NOW, width).table, width)[0].split()
        seen += [name for name in order if name not in heads and name not in seen]
    assert seen == order


@pytest.mark.parametrize("width", WIDTHS)
def test_every_cell_of_the_generations_is_whole(tmp_path: Path, width: int) -> None:
    run = submitted(tmp_path / "run")
    for generation, (start, end) in enumerate(((0, 12_345), (12_340, 20_000)), 1):
        with EventLog(run.events, generation=generation, attempt=0) as log:
            log.emit_kind("generation_started", nodes=2)
            log.emit_kind("training_started", step=start, world_size=16, samples=4)
            log.emit_kind("step", step=end, loss=2.0, step_s=0.5)
            log.emit_kind("generation_ended", verdict="preempted", reason="because", step=end)
    console = Console(width=width, file=StringIO(), record=True)
    show(run, console)
    head, first, second, legend = console.export_text().splitlines()[1:5]
    assert max(map(len, (head, first, second))) <= width
    assert "…" not in first
    for cell in ("0 → 12,345", "preempted", " s"):
        assert cell.replace(",", "") in first
    assert second.split()[0] == "2"
    assert ("+" in head) == ("+" in first) == ("=" in legend)
