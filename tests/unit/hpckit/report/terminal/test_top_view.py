"""`hpckit top` on screens of any size: what matters most is there, and all of it fits."""

from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hpckit.events.schema import StragglerCost, event_of
from hpckit.report.interruptions import RunInterruption
from hpckit.report.overview import Overview, Queue, read_overview
from hpckit.report.run_state import RunState
from hpckit.report.terminal.sparkline import sparkline
from hpckit.report.terminal.top_curves import curves_of
from hpckit.report.terminal.top_list import SORTS, listed
from hpckit.report.terminal.top_view import (
    RunCurves,
    ScreenSize,
    TopDetail,
    TopState,
    view_of,
)
from tests.unit.hpckit.report.sample_runs import submitted

SIZES = ((80, 24), (40, 12), (20, 6), (200, 50))
NOW = 330.0


@pytest.fixture
def idle(tmp_path: Path) -> Overview:
    return read_overview(
        submitted(tmp_path / "gpt-pretraining-on-all-of-the-web-1a2b3c4d"), Queue()
    )


@pytest.fixture
def busy(idle: Overview) -> Overview:
    """A run under way that has been interrupted."""
    before = RunInterruption("preempted", 80_000, 30.0)
    known: dict[str, Any] = {"data_wait": 0.02, "ettr": 0.97, "training_share": 0.99}
    known |= {"steps": 100_000, "step": 81_234, "saved_step": 81_000, "saved_time": 0.0}
    known |= {"step_s": 0.5, "tokens_per_s": 123_456.0, "loss": 2.3141, "step_time": 329.0}
    known |= {"interruptions": {"preempted": 2, "worker lost": 11}, "last_interruption": before}
    progress = replace(idle.progress, samples_per_s=812.0, **known)
    return replace(idle, state=RunState.RUNNING, progress=progress)


def screen(state: TopState, width: int = 80, height: int = 24, *, is_ascii: bool = False) -> str:
    console = Console(width=width, height=height, file=StringIO(), record=True)
    console.print(view_of(state, ScreenSize(width, height, is_ascii), NOW))
    return console.export_text()


def test_what_matters_is_on_a_line_of_eighty_columns(busy: Overview) -> None:
    said = screen(TopState([busy], 1))
    row = next(line for line in said.splitlines() if line.startswith("gpt-"))
    for text in ("…", "running", "81,234/100k", "2.314", "2.6 h", "123k tok/s", "97.0%", "234"):
        assert text in row
    assert "running: preemption at step 80,000, 5.0 min ago; it has recovered" in said


def test_samples_per_second_are_shown_where_there_are_no_tokens(busy: Overview) -> None:
    seen = replace(busy, progress=replace(busy.progress, tokens_per_s=None))
    assert "812 spl/s" in screen(TopState([seen], 1))


def test_a_dead_run_has_a_cause_and_no_speed(busy: Overview) -> None:
    said = screen(TopState([replace(busy, state=RunState.DEAD)], 1))
    assert "dead: " in said
    assert "recovered" not in said
    assert "tok/s" not in said


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_every_screen_fits(busy: Overview, width: int, height: int) -> None:
    log = TopDetail("log of it", ["a line that is much longer than the screen " * 9] * 90, True)
    curves = RunCurves([9.0, 4.0, math.nan, 2.0], [1e5] * 4, "tok/s")
    runs = [replace(busy, progress=replace(busy.progress, step=n)) for n in range(40)]
    for state in (
        TopState(runs, 40, chosen=30),
        TopState(runs, 40, chosen=39, detail=log),
        TopState(runs, 40, chosen=3, is_open=True, curves=curves, detail=log),
        TopState(runs, 40, has_help=True),
        TopState([], 40, words="nothing", is_typing=True),
        TopState([], 0),
    ):
        lines = screen(state, width, height).rstrip("\n").split("\n")
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert lines[-1].startswith(("?: help", "any key", "enter: keep"))


def test_the_selected_run_is_among_the_lines_that_are_shown(busy: Overview) -> None:
    runs = [replace(busy, progress=replace(busy.progress, step=n)) for n in range(100)]
    for chosen in (0, 50, 99):
        assert f" {chosen}/100k" in screen(TopState(runs, 100, chosen=chosen))


def test_an_open_run_has_its_curves_and_the_end_of_its_log(busy: Overview) -> None:
    curves = RunCurves([8.0, 4.0, 2.0, 1.0], [1e5, 2e5], "tok/s")
    log = TopDetail("log of it", [f"line {n}" for n in range(100)], True)
    state = TopState([busy], 1, is_open=True, curves=curves, detail=log)
    said = screen(state)
    assert "2.314  █▄▂▁  from 8" in said
    assert "line 99" in said
    assert "line 50" not in said
    assert "2.314  #:._  from 8" in screen(state, is_ascii=True)


def test_the_help_names_keys_and_columns(busy: Overview) -> None:
    said = screen(TopState([busy], 1, has_help=True))
    for text in ("sort by the next column", "steps since the newest durable checkpoint"):
        assert text in said


def test_a_line_says_what_the_stragglers_of_a_run_cost(busy: Overview) -> None:
    lists: dict[str, Any] = {"nodes": [3], "ranks": [12], "hosts": ["n3"], "phases": ["compute"]}
    shares: dict[str, Any] = {"share": 0.073, "spread": 0.1, "collectives": 0.1, "excesses": [0.3]}
    about: dict[str, Any] = {"step": 40, "traces": 12, "seconds": 10.0, "step_s": 1.0}
    cost = StragglerCost(**about, **shares, **lists)
    slow = replace(busy, progress=replace(busy.progress, straggler_cost=cost))
    words = "without rank 12 on n3 a step would take 7.3% less"
    assert words in screen(TopState([slow], 1), width=200)
    assert words not in screen(TopState([replace(slow, state=RunState.DEAD)], 1), width=200)


def test_runs_are_found_by_words_and_sorted(busy: Overview, idle: Overview) -> None:
    assert listed([busy, idle], "name", "GPT dead", is_reversed=False) == [idle]
    assert listed([busy, idle], "name", "other", is_reversed=False) == []
    for sort in SORTS:
        assert len(listed([busy, idle], sort, "", is_reversed=False)) == 2
    assert listed([idle, busy], "to go", "", is_reversed=False) == [busy, idle]
    assert listed([idle, busy], "loss", "", is_reversed=True) == [idle, busy]


def test_a_sparkline_shows_the_shape_and_not_a_spike_alone() -> None:
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0] * 5, 3) == "▁▁▁"
    assert sparkline([math.nan, 1.0, 2.0], 3) == "!▁█"
    assert sparkline([], 5) == ""
    spiked = sparkline([float(n) for n in range(40)] + [1e9] + [1.0], 42)
    assert len(set(spiked)) == 8


def test_curves_are_of_the_newest_record_of_each_step() -> None:
    def step(number: int, **fields: float) -> Any:
        of = {"step": number, "step_s": 0.5, "generation": 1}
        return event_of(1.0, "step", {**of, **fields})

    events = [step(1, loss=4.0), step(2, loss=3.0), step(2, loss=2.0, samples_per_s=7.0)]
    assert curves_of(events) == RunCurves([4.0, 2.0], [7.0], "samples/s")
    assert curves_of([step(1)]) == RunCurves([], [0.5], "s/step")
