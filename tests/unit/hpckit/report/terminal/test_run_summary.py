"""The summary says what the files of a run say, and claims nothing else."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from checkpointing import Checkpointer, list_checkpoints
from hpckit.config.spec_parser import dump_spec
from hpckit.events.event_log import EventLog
from hpckit.report.terminal.run_summary import show
from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import RunLock
from hpckit.system.atomic_files import write_json
from hpckit.trainer.sample_ledger_writer import SampleLedgerWriter
from tests.unit.hpckit.specs_and_processes import make_spec

SAMPLES = 4


def summary(run: RunDir) -> str:
    console = Console(file=io.StringIO(), width=200)
    show(run, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def ran(path: Path, steps: int, missing: int | None = None, twice: int | None = None) -> RunDir:
    """A run of one sample a step; the ledger lacks the entry of one step, or has one too many."""
    run = RunDir(path / "run")
    run.submission(1).mkdir(parents=True)
    run.spec(1).write_text(dump_spec(make_spec({"train.global_batch": 1})))
    with EventLog(run.events, generation=1, attempt=0) as log:
        log.emit_kind("generation_started", nodes=1)
        log.emit_kind("training_started", step=0, world_size=1, samples=SAMPLES)
        for step in range(1, steps + 1):
            log.emit_kind("step", step=step, loss=2.0 / step, step_s=0.5)
        log.emit_kind("generation_ended", verdict="done", reason="because", step=steps)
    ledger = SampleLedgerWriter(run.ledger, generation=1, attempt=0, rank=0)
    for step in range(steps):
        for _ in range((step != missing) + (step == twice)):
            ledger.write(step + 1, range(step, step + 1), [f"key{step % SAMPLES}"])
    ledger.close()
    return run


def test_a_run_that_has_not_trained_is_said_to_be_that(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    assert "has not trained yet" in summary(run)
    assert not run.report.exists()


def test_steps_loss_and_verdict_are_told(tmp_path: Path) -> None:
    run = ran(tmp_path, steps=6)
    write_json(run.verdict, {"kind": "done", "reason": "reached the last step"})
    text = summary(run)
    assert "6 kept, 0 repeated" in text
    assert "2.000 at step 1, 0.333 at step 6" in text
    assert "done: reached the last step" in text


def test_whole_epochs_and_one_in_which_the_run_ends_are_told_apart(tmp_path: Path) -> None:
    text = summary(ran(tmp_path, steps=6))
    assert "epoch 1: 4 of 4 seen, each exactly once\n" in text
    assert "epoch 2: 2 of 4 seen, each exactly once (the run ends inside it)\n" in text


@pytest.mark.parametrize("step", range(5))
def test_a_sample_that_was_never_seen_is_not_passed_off_as_the_end_of_the_run(
    tmp_path: Path, step: int
) -> None:
    lines = summary(ran(tmp_path, steps=6, missing=step)).splitlines()
    (line,) = [line for line in lines if f"epoch {step // SAMPLES + 1}:" in line]
    assert "each exactly once" not in line


def test_a_sample_seen_twice_is_named(tmp_path: Path) -> None:
    text = summary(ran(tmp_path, steps=6, twice=2))
    assert "epoch 1: 4 of 4 seen, 1 more than once, first key2" in text


def saved(run: RunDir, store: Path, *steps: int) -> None:
    """Checkpoints of the run, told as a worker tells of them."""
    with EventLog(run.events, generation=1, attempt=0) as log:
        checkpointer = Checkpointer(store, run=run.name, on_event=log.emit_kind)
        for step in steps:
            checkpointer.save(step, {"w": torch.full((1000,), float(step))})
            checkpointer.wait()
        checkpointer.close()


def line(run: RunDir, name: str) -> str:
    (found,) = [text for text in summary(run).splitlines() if text.startswith(name)]
    return found.removeprefix(name).strip()


def test_checkpoints_are_those_that_are_still_there(tmp_path: Path) -> None:
    run = ran(tmp_path, steps=6)
    assert line(run, "checkpoints") == "0 committed, none kept"
    saved(run, run.checkpoints, 2, 4, 6)
    assert line(run, "checkpoints").startswith("3 committed, 3 kept (steps 2, 4, 6), ")
    (run.checkpoints / list_checkpoints(run.checkpoints)[1].key).unlink()
    assert line(run, "checkpoints").startswith("3 committed, 2 kept (steps 2, 6), ")


def test_checkpoints_are_found_where_the_run_was_moved_to(tmp_path: Path) -> None:
    run = ran(tmp_path, steps=6)
    saved(run, run.checkpoints, 2)
    moved = RunDir(run.path.rename(tmp_path / "moved"))
    assert line(moved, "checkpoints").startswith("1 committed, 1 kept (step 2), ")


def test_checkpoints_of_other_runs_in_a_store_elsewhere_do_not_count(tmp_path: Path) -> None:
    run = ran(tmp_path, steps=6)
    saved(run, tmp_path / "store", 2)
    saved(RunDir(ran(tmp_path / "other", steps=6).path), tmp_path / "store", 5)
    assert line(run, "checkpoints").startswith("1 committed, 1 kept (step 2), ")


def test_a_store_that_is_gone_is_said_and_the_rest_is_told(tmp_path: Path) -> None:
    run = ran(tmp_path, steps=6)
    saved(run, tmp_path / "store", 2)
    shutil.rmtree(tmp_path / "store")
    assert line(run, "checkpoints") == (
        f"1 committed, but they cannot be read: no checkpoint store at {tmp_path}/store: "
        "it has no hpckit.json"
    )
    assert "6 kept, 0 repeated" in summary(run)


@pytest.mark.parametrize("reason", ["cannot open [/data/x]", "index [i] is out of bounds"])
def test_a_reason_with_brackets_is_shown_as_it_is(tmp_path: Path, reason: str) -> None:
    run = ran(tmp_path, steps=2)
    write_json(run.verdict, {"kind": "crash", "reason": reason})
    assert f"crash: {reason}" in summary(run)


def test_a_run_that_is_under_way_is_running(tmp_path: Path) -> None:
    run = ran(tmp_path, steps=2)
    lines = run.events.read_text().splitlines(keepends=True)
    run.events.write_text("".join(lines[:-1]))
    assert "killed" in summary(run)
    with RunLock(run.lock, "supervisor"):
        assert "running" in summary(run)
