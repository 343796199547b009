"""What keys of `hpckit top` are about, while runs come and go."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from hpckit.cli import top
from hpckit.cli.top import ESCAPE, TopScreen
from hpckit.report.overview import Overview, Queue, look
from hpckit.report.terminal.top_view import ScreenSize
from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import hold_all
from hpckit.slurm.squeue import SlurmJob
from tests.unit.hpckit.report.sample_runs import ran, submitted, write


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


def test_typed_words_filter_the_runs_and_are_no_commands(root: Path) -> None:
    screen = TopScreen(root)
    screen.look()
    for key in ("/", "q", "c"):
        screen.press(key)
    assert not screen.is_over
    assert "0 of 3 runs with: qc_" in shown(screen)
    for key in ("\x7f", "\x7f", "b", "\r"):
        screen.press(key)
    assert "1 of 3 runs with: b" in shown(screen)
    screen.press(ESCAPE)
    assert "3 runs, by name" in shown(screen)


def test_sorting_keeps_the_selected_run(root: Path) -> None:
    screen = TopScreen(root)
    screen.look()
    for key in ("j", "s", "S"):
        screen.press(key)
    assert "3 runs, by state, reversed" in shown(screen)
    screen.press("c")
    assert "b is starting" in shown(screen)


def test_a_run_is_opened_and_closed(root: Path) -> None:
    (root / "a" / "logs").mkdir()
    (root / "a" / "logs" / "supervisor.log").write_text("it begins\n")
    screen = TopScreen(root)
    screen.look()
    screen.press("\r")
    assert "it begins" in shown(screen)
    screen.press("l")
    assert "rank 0's log of a" in shown(screen)
    screen.press("?")
    assert "Keys" in shown(screen)
    screen.press("x")
    screen.press(ESCAPE)
    assert "3 runs" in shown(screen)


def test_an_open_run_stays_open_when_it_no_longer_has_the_words(root: Path) -> None:
    screen = TopScreen(root)
    screen.look()
    for key in ("/", *"b starting", "\r", "\r"):
        screen.press(key)
    assert "log of b" in shown(screen)
    (root / "b" / "lock").unlink()
    screen.look()
    assert "log of b" in shown(screen)
    screen.press(ESCAPE)
    assert "0 of 3 runs with: b starting" in shown(screen)


def test_a_run_that_is_open_may_go(root: Path) -> None:
    screen = TopScreen(root)
    screen.look()
    screen.press("\r")
    shutil.rmtree(root / "a")
    screen.look()
    assert "a no longer exists" in shown(screen)


def test_a_run_that_is_over_is_read_again_only_if_its_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, read = ran(tmp_path / "done"), list[str]()

    def note(run: RunDir, slurm: Queue) -> Overview:
        read.append(run.name)
        return look(run, slurm)

    monkeypatch.setattr("hpckit.report.overview.look", note)
    screen = TopScreen(tmp_path)
    screen.look()
    screen.look()
    assert read == ["done"]
    write(run, {"time": 9999.0, "kind": "run_started", "steps": 10})
    screen.look()
    assert read == ["done", "done"]


def shown(screen: TopScreen) -> str:
    console = Console(width=80, height=24, file=StringIO(), record=True)
    console.print(screen.view(ScreenSize()))
    return console.export_text()


def test_a_run_that_is_being_submitted_is_not_dead_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, jobs = submitted(tmp_path / "gpt-1", cluster="slurm"), list[SlurmJob]()
    run.submitit.mkdir()

    def queue() -> list[SlurmJob]:  # Slurm accepts the job after it was asked
        found = [*jobs]
        if not jobs:
            (run.submitit / "7_submitted.pkl").touch()
            of = ("7", "PENDING", None, None, "1:00", 1, "p", "", "", "Priority", run.name)
            jobs.append(SlurmJob(*of))
        return found

    monkeypatch.setattr("hpckit.report.overview.queue", queue)
    screen, words = TopScreen(tmp_path), []
    for _ in range(2):
        screen.look()
        words.append(screen._all[0].word)
    assert words == ["dead", "queued"]
