"""TensorBoard files of a run whose last node died: by the real process that writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.agent.verdict_record import Verdict, VerdictKind
from hpckit.events.event_log import EventLog, read_events
from hpckit.rundir.directory import RunDir
from hpckit.supervisor.generation_record import GenerationRecorder
from hpckit.trainer.metrics.tensorboard_curves import write_until
from tests.unit.hpckit.specs_and_processes import make_spec
from tests.unit.hpckit.trainer.metrics.test_tensorboard_file import read

ENDED = Verdict(VerdictKind.INFRA, True, "lost node 0")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Five steps, of which the files have three."""
    run = RunDir(tmp_path)
    with EventLog(run.events, generation=1, attempt=0, rank=0) as events:
        events.emit_kind("training_started", step=0, world_size=1)
        for step in range(1, 6):
            events.emit_kind("step", step=step, loss=float(step))
            if step == 3:
                write_until(lambda: True, run.events, run.tensorboard)
    return run


def leave(run: RunDir, verdict: Verdict = ENDED, *, is_asked: bool = False) -> list[str]:
    """What the supervisor does at the end; what is said of it."""
    with EventLog(run.events, submission=1) as events:
        GenerationRecorder(run, make_spec(), 1, events).complete_curves(verdict, lambda: is_asked)
    return [event["what"] for event in read_events(run.events) if event.kind == "degraded"]


def files(run: RunDir) -> list[Path]:
    return sorted(run.tensorboard.glob("events.out.tfevents.*"))


def test_what_the_files_lack_is_written_once(run: RunDir) -> None:
    assert leave(run) == []
    assert read(run.tensorboard, "loss") == [(n, float(n)) for n in range(1, 6)]
    there = files(run)
    assert len(there) == 2
    assert leave(run) == []
    assert files(run) == there, "nothing was left"


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(VerdictKind.PREEMPTED, True, ""),
        Verdict(VerdictKind.TIME_LIMIT, True, ""),
        Verdict(VerdictKind.STOPPED, True, ""),
        Verdict(VerdictKind.INFRA, False, "another generation follows"),
    ],
)
def test_who_waits_for_the_end_does_not_wait_for_the_files(run: RunDir, verdict: Verdict) -> None:
    assert leave(run, verdict) == []
    assert len(files(run)) == 1


def test_a_job_that_is_asked_to_leave_meanwhile_does(run: RunDir) -> None:
    (said,) = leave(run, is_asked=True)
    assert "the job had to end" in said
    assert read(run.tensorboard, "loss")[-1] == (3, 3.0)


def test_it_is_not_waited_for_without_end(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpckit.supervisor.tensorboard_backfill.PATIENCE_S", 0.0)
    (said,) = leave(run)
    assert "not finished after 0 s" in said


def test_a_process_that_fails_is_told_of(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken/tensorboard").mkdir(parents=True)
    (tmp_path / "broken/tensorboard/__init__.py").write_text("raise ImportError('half of it')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    (said,) = leave(run)
    assert said.startswith("TensorBoard files lack the newest records: ImportError: half of it; ")
