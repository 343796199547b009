"""`hpckit resume` of a run that is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpckit.cli.main import app
from hpckit.rundir.code_snapshot.snapshot import Project
from hpckit.rundir.directory import RunDir
from hpckit.submit.submission_files import add_submission
from hpckit.system.atomic_files import write_json
from tests.unit.hpckit.specs_and_processes import make_spec

TYPED = ["name=t", "train.steps=200", "user_config.note='a b'"]


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr("hpckit.rundir.code_snapshot.snapshot.PACKAGES", ())
    (tmp_path / "project").mkdir()
    run = RunDir(tmp_path / "t-12345678")
    run.path.mkdir()
    spec = make_spec({"root": "/runs", "train.steps": 200})
    add_submission(run, spec, TYPED, Project(tmp_path / "project", False))
    write_json(run.verdict, {"kind": "done"})
    return run


def typed(run: RunDir, *words: str) -> tuple[int, list[str], str]:
    found = CliRunner().invoke(app, ["resume", str(run.path), *words])
    return found.exit_code, found.stdout.splitlines(), found.stderr


def test_a_run_that_is_done_says_so_and_what_to_do_instead(done: RunDir) -> None:
    status, lines, _ = typed(done)
    assert status == 0
    assert lines[0] == "t-12345678 is done, at its last step, 200; nothing to resume"
    assert [line.split(":")[0] for line in lines[1:]] == [
        "to run it again from the beginning",
        "to train longer, as a new run",
    ]
    assert lines[1].endswith(" --fresh")
    assert lines[2].endswith("name=t 'user_config.note='\"'\"'a b'\"'\"'' train.steps=N")
    assert done.submission_numbers() == [1]


@pytest.mark.parametrize(
    ("words", "ignored"),
    [
        (["launch.nodes=8"], "launch.nodes=8 is ignored: "),
        (["launch.nodes=8", "elastic=spares"], "launch.nodes=8 elastic=spares are ignored: "),
    ],
)
def test_overrides_of_a_run_that_is_done_are_named_as_ignored(
    done: RunDir, words: list[str], ignored: str
) -> None:
    status, lines, _ = typed(done, *words)
    assert status == 0
    assert lines[1].startswith(ignored)
    document = json.loads("\n".join(typed(done, *words, "--json")[1]))
    assert (document["resumed"], document["ignored"]) == (False, words)
    assert done.submission_numbers() == [1]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("launch.node=8", "launch.node: unknown key; did you mean launch.nodes?"),
        ("train.steps=400", "train.steps (200 -> 400): would make it another run; to start that"),
        ("optim.lr=0.5", "optim.lr (0.0006 -> 0.5): would make it another run"),
    ],
)
def test_overrides_that_a_run_cannot_have_are_refused_when_it_is_done_too(
    done: RunDir, word: str, said: str
) -> None:
    status, lines, error = typed(done, word)
    assert (status, lines) == (2, [])
    assert error.startswith(f"error: {said}")
