"""Which checkpoint the commands take of a place, and what they say of one that has no store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from checkpointing import Checkpointer, list_run
from hpckit.cli.main import app
from hpckit.config.spec_parser import dump_spec
from hpckit.events.event_log import EventLog
from hpckit.rundir.directory import RunDir, run_name
from tests.unit.hpckit.specs_and_processes import make_spec


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("none", "is a run that has not saved a checkpoint yet"),
        ("program", "is the run of a program, which keeps its checkpoints itself"),
    ],
)
def test_a_run_without_a_store(tmp_path: Path, command: str, says: str) -> None:
    run = RunDir(tmp_path / "t-1")
    run.submission(1).mkdir(parents=True)
    run.spec(1).write_text(dump_spec(make_spec(command=command)))
    for words in (["ckpt", "ls"], ["ckpt", "follow", "--once", f"--into={tmp_path / 'into'}"]):
        done = CliRunner().invoke(app, [*words, str(run.path)])
        assert done.exit_code == 2
        assert says in " ".join(done.output.split())


@pytest.mark.parametrize("url", [None, "store"])
def test_the_latest_is_none_that_the_run_has_left_behind(tmp_path: Path, url: str | None) -> None:
    spec = make_spec({"checkpoint.url": url and str(tmp_path / url)})
    run = RunDir(tmp_path / "t-1")
    run.submission(1).mkdir(parents=True)
    run.spec(1).write_text(dump_spec(spec))
    store, name = spec.checkpoint.url or str(run.checkpoints), run_name(spec)
    checkpointer = Checkpointer(store, run=name)
    for step in (5, 12):
        checkpointer.save(step, {"weights": {"w": torch.ones(3)}})
        checkpointer.wait()  # a newer save may take the place of one that waits
    checkpointer.close()
    spike = {"first_step": 13, "step": 13, "what": "", "first_position": 0, "end_position": 4}
    with EventLog(run.events) as events:
        for info in list_run(store, name):
            events.emit_kind("checkpoint_committed", step=info.step, id=info.id, store=store)
        events.emit_kind("spike", **spike, is_left_out=True)
        events.emit_kind("training_started", generation=1, step=5, world_size=1, samples=9)

    def shown(place: Path | str, step: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["ckpt", "show", str(place), step, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["step"], done.stderr

    assert shown(run.path, "latest") == (5, "")
    assert shown(run.checkpoints if url is None else run.path, "latest") == (5, "")
    assert shown(f"{store}/runs/{name}", "latest") == (12, ""), "without its events"
    step, said = shown(run.path, "12")
    assert step == 12
    assert "does not use step 12" in " ".join(said.split())
