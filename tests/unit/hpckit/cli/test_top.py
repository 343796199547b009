"""What keys of `hpckit top` are about, while runs come and go."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from hpckit.cli import top
from hpckit.cli.top import ESCAPE, TopScreen
from hpckit.events import event_validation
from hpckit.events.schema import Event
from hpckit.report.overview import Overview, Queue, read_overview
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


def test_the_events_of_a_run_that_is_open_are_read_once_for_each_refresh(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen, run = TopScreen(root), RunDir(root / "a")
    step = {"kind": "step", "generation": 1, "attempt": 0, "step_s": 1.0}
    write(run, *({"time": float(n), "step": n, "loss": 3.0, **step} for n in (1, 2)))
    screen.look()
    screen.press("\r")
    assert screen._curves is not None
    assert list(screen._curves.loss) == [3.0, 3.0]
    write(run, {"time": 3.0, "step": 3, "loss": 2.0, **step})
    read: list[str] = []

    def read_valid_events(run: RunDir) -> event_validation.ValidatedEvents:
        read.append(run.name)
        return original(run)

    original = event_validation.read_valid_events
    for place in ("events.event_validation", "report.overview", "report.terminal.top_curves"):
        monkeypatch.setattr(f"hpckit.{place}.read_valid_events", read_valid_events)
    screen.look()
    assert list(screen._curves.loss) == [3.0, 3.0, 2.0]
    assert sorted(read) == ["a", "b", "c"]


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

    def note(run: RunDir, slurm: Queue, events: Sequence[Event] | None) -> Overview:
        read.append(run.name)
        return read_overview(run, slurm, events)

    monkeypatch.setattr("hpckit.report.overview.read_overview", note)
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
