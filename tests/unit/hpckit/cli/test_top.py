"""What keys of `hpckit top` are about, while runs come and go."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hpckit.cli import top
from hpckit.cli.top import TopScreen
from hpckit.events.schema import StragglerCost
from hpckit.report.overview import Overview, Queue, look
from hpckit.report.run_state import RunState
from hpckit.report.terminal.top_view import view_of
from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import hold_all
from tests.unit.hpckit.report.sample_runs import submitted


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs that were, in place of doing it."""
    found: list[str] = []

    def note(it: Overview, *, saves: bool) -> str:
        found.append(it.run.name)
        return ""

    monkeypatch.setattr(top, "_cancel", note)
    return found


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """With three runs that go on: a, b and c."""
    with ExitStack() as stack:
        for name in "abc":
            run = submitted(tmp_path / name)
            stack.enter_context(hold_all([run.lock], "a test"))
        yield tmp_path


def asking_of_b(root: Path) -> TopScreen:
    screen = TopScreen(root)
    screen.look()
    screen.press("j")
    screen.press("c")
    return screen


def test_yes_is_about_the_run_that_was_asked_about(root: Path, cancelled: list[str]) -> None:
    screen = asking_of_b(root)
    screen.look()
    screen.press("y")
    assert cancelled == ["b"]
    screen.press("y")
    assert cancelled == ["b"]


def test_no_other_run_is_cancelled_for_one_that_went(root: Path, cancelled: list[str]) -> None:
    screen = asking_of_b(root)
    shutil.rmtree(root / "b")
    screen.look()
    screen.press("y")
    assert cancelled == []
    shutil.rmtree(root / "a")
    shutil.rmtree(root / "c")
    screen.look()
    screen.press("c")
    assert not screen.is_over


def test_the_last_run_may_go_while_it_is_asked_about(root: Path, cancelled: list[str]) -> None:
    screen = asking_of_b(root)
    for name in "abc":
        shutil.rmtree(root / name)
    screen.look()
    screen.press("y")
    assert cancelled == []


def test_a_row_is_whole_on_eighty_columns(root: Path) -> None:
    it = look(RunDir(root / "a"), Queue())
    done = replace(it.progress, steps=100_000, step=81_234, saved_step=81_000, saved_time=0.0)
    shares = replace(done, tokens_per_s=123_456.0, data_wait=0.02, ettr=0.97)
    progress = replace(shares, interruptions={"preempted": 2, "worker": 11})
    busy = replace(it, state=RunState.RUNNING, progress=progress)
    console = Console(width=80, file=StringIO(), record=True)
    console.print(view_of([busy], 0, None, "", now=330.0))
    said = console.export_text()
    assert "less time" not in said
    assert "…" not in said
    assert {"a", "81,234/100,000", "123,456", "97%", "234", "2%", "11"} <= {*said.split()}


def test_a_line_says_what_the_stragglers_of_a_run_cost(root: Path) -> None:
    it = look(RunDir(root / "a"), Queue())
    named: dict[str, Any] = {
        "nodes": [3],
        "ranks": [12],
        "hosts": ["n3"],
        "excesses": [0.3],
        "phases": ["compute"],
    }
    shares: dict[str, Any] = {"share": 0.073, "spread": 0.1, "collectives": 0.1}
    about: dict[str, Any] = {"step": 40, "traces": 12, "seconds": 10.0, "step_s": 1.0}
    cost = StragglerCost(**about, **shares, **named)
    slow = replace(it, progress=replace(it.progress, straggler_cost=cost))
    console = Console(width=200, file=StringIO(), record=True)
    for state in (RunState.RUNNING, RunState.DEAD):
        console.print(view_of([replace(slow, state=state)], 0, None, "", now=330.0))
    assert console.export_text().count("a: without rank 12 on n3 a step would take 7.3% less") == 1
