"""`hpckit resume` of a run that is done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpckit.cli.main import app
from hpckit.config.run_identity import identity
from hpckit.config.spec_parser import SpecError, dump_spec, read_spec
from hpckit.rundir.code_snapshot.snapshot import Project
from hpckit.rundir.directory import RunDir
from hpckit.submit.compose import amend_spec
from hpckit.submit.preflight.checks import with_absolute_paths
from hpckit.submit.preparation import compose, is_done
from hpckit.submit.resume_overrides import (
    amended,
    extension_lines,
    is_extended,
    with_kept_extension,
)
from hpckit.submit.submission_files import add_amended_submission, add_submission
from hpckit.system.atomic_files import write_json
from tests.unit.hpckit.specs_and_processes import CHECKOUT, make_spec

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
        "to train longer",
    ]
    assert lines[1].endswith(" --fresh")
    assert lines[2].endswith("/t-12345678 train.steps=N, with N above 200")
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
        ("train.steps=150", "train.steps (200 -> 150): would make it another run; to start that"),
        ("optim.lr=0.5", "optim.lr (0.0006 -> 0.5): would make it another run"),
    ],
)
def test_overrides_that_a_run_cannot_have_are_refused_when_it_is_done_too(
    done: RunDir, word: str, said: str
) -> None:
    status, lines, error = typed(done, word)
    assert (status, lines) == (2, [])
    assert error.startswith(f"error: {said}")


def test_a_program_gets_no_keys_that_it_cannot_read(done: RunDir) -> None:
    spec = compose(["root=/runs", "--", "python", "t.py"], CHECKOUT, Project(CHECKOUT, False))
    done.spec(1).write_text(dump_spec(spec))
    for words in (
        ["train.steps=400"],
        ["checkpoint.every_steps=5"],
        ["launch.nodes=1", "optim.lr=1"],
    ):
        status, lines, error = typed(done, *words)
        assert (status, lines) == (2, [])
        assert error.startswith(f"error: {words[-1].split('=')[0]}: has no effect on a program")


def test_the_same_run_can_get_more_steps_and_never_fewer(done: RunDir) -> None:
    before = read_spec(done.spec(1))
    longer = with_absolute_paths(amend_spec(before, ["train.steps=400"], None), Path.cwd())
    assert identity(longer) != identity(before)
    assert is_extended(done, 1, ["train.steps=400"])
    assert not is_extended(done, 1, ["launch.nodes=2"])
    after = replace(longer, train=replace(longer.train, identity_steps=200))
    assert identity(after) == identity(before)
    add_amended_submission(done, after, ["train.steps=400"], 1)
    write_json(done.verdict, {"kind": "done", "steps": 200, "saved_step": 200})
    assert not is_done(done)
    assert is_done(done, before)
    # the first command continues the longer run
    assert with_kept_extension(done, before) == after
    with pytest.raises(SpecError, match="300 is less than 400, which the run has; it can only"):
        amended(done, 2, ["train.steps=300"])
    with pytest.raises(SpecError, match="no checkpoint of the run any more"):
        amended(done, 2, ["train.steps=500"])


def test_what_becomes_of_the_learning_rate_is_said(done: RunDir) -> None:
    write_json(done.verdict, {"kind": "done", "steps": 200, "saved_step": 200})
    before = read_spec(done.spec(1))
    after = replace(before, train=replace(before.train, steps=400, identity_steps=200))
    first, second = extension_lines(done, before, after)
    assert first == "t-12345678 gets train.steps=400, not 200, and continues after step 200"
    assert "optim.schedule=cosine is that of 400 steps from now on: the learning rate was" in second
    constant = [replace(s, optim=replace(s.optim, min_lr_ratio=None)) for s in (before, after)]
    assert len(extension_lines(done, *constant)) == 1
    assert extension_lines(done, before, before) == []


def test_the_copied_code_gets_no_key_that_it_may_not_know(done: RunDir) -> None:
    path = done.spec(1)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "identity_steps" not in line))
    add_amended_submission(done, read_spec(path), ["launch.nodes=2"], 1)
    assert "identity_steps" not in done.spec(2).read_text()
