"""What the commands on checkpoints say of a place that has no store."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpckit.cli.main import app
from hpckit.config.spec_parser import dump_spec
from hpckit.rundir.directory import RunDir
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
