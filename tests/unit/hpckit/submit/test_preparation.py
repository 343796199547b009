"""Tests of the preparation of submissions, which all commands that submit something share."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.config.spec_parser import SpecError, read_spec
from hpckit.rundir.code_snapshot.snapshot import Project
from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import RunHeldError, hold_all
from hpckit.submit import preparation
from hpckit.submit.preparation import CommandOptions, SubmissionRequest, is_done, prepare
from hpckit.submit.resume_overrides import overrides_of
from hpckit.system.atomic_files import write_json
from tests.unit.hpckit.specs_and_processes import make_spec

THIS_JOB = CommandOptions("a test", is_queue_checked=False, say=lambda message: None)
LOGIN_NODE = CommandOptions("a test", say=lambda message: None)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr("hpckit.rundir.code_snapshot.snapshot.PACKAGES", ())
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text("x = 1\n")
    return Project(root, False)


def finish(run: RunDir) -> None:
    write_json(run.verdict, {"kind": "done"})
    assert is_done(run)


def test_runs_that_are_done_get_no_submission(tmp_path: Path, project: Project) -> None:
    runs = [RunDir(tmp_path / name) for name in ("first", "second")]
    requests = [SubmissionRequest(run, make_spec(), [], project) for run in runs]
    assert prepare(requests, LOGIN_NODE) == [1, 1]
    finish(runs[0])
    assert prepare(requests, LOGIN_NODE) == [None, 2]


def test_a_fresh_run_moves_the_earlier_one_aside(tmp_path: Path, project: Project) -> None:
    run, said = RunDir(tmp_path / "run"), list[str]()
    options = CommandOptions("a test", say=said.append)
    wanted = SubmissionRequest(run, make_spec(), [], project, is_fresh=True)
    assert prepare([wanted], options) == [1]
    assert said == [], "there was no earlier run"
    finish(run)
    assert prepare([wanted], options) == [1]
    assert said == [f"moved the earlier run to {tmp_path / 'run.old1'}"]
    assert is_done(RunDir(tmp_path / "run.old1"))


@pytest.mark.parametrize("is_amended", [False, True])
def test_a_run_that_is_queued_gets_no_second_submission(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch, is_amended: bool
) -> None:
    run = RunDir(tmp_path / "run")
    assert prepare([SubmissionRequest(run, make_spec(), [], project)], LOGIN_NODE) == [1]

    def refuse(requests: object) -> None:
        raise SpecError(["job 7 of it is queued"])

    monkeypatch.setattr(preparation, "require_unqueued", refuse)
    code = 1 if is_amended else project
    wanted = SubmissionRequest(run, make_spec(), ["train.seed=1"], code)
    with pytest.raises(SpecError, match="job 7"):
        prepare([wanted], LOGIN_NODE)
    assert run.submission_numbers() == [1]
    assert prepare([wanted], THIS_JOB) == [2], "a job is not refused because it exists itself"


def test_an_earlier_submission_is_used_again_unless_something_differs(
    tmp_path: Path, project: Project
) -> None:
    run, spec = RunDir(tmp_path / "run"), make_spec()
    prepare([SubmissionRequest(run, spec, ["train.seed=1"], project)], LOGIN_NODE)
    assert prepare([SubmissionRequest(run, spec, [], 1)], LOGIN_NODE) == [1]
    larger = make_spec({"launch.nodes": 2})
    assert prepare([SubmissionRequest(run, larger, [], 1)], THIS_JOB) == [2], "resized by its job"
    assert read_spec(run.spec(2)) == larger
    assert prepare([SubmissionRequest(run, larger, ["launch.nodes=2"], 2)], LOGIN_NODE) == [3]
    assert overrides_of(run, 3) == ["train.seed=1", "launch.nodes=2"]


def test_nothing_is_prepared_while_another_process_holds_one_of_the_runs(
    tmp_path: Path, project: Project
) -> None:
    runs = [RunDir(tmp_path / name) for name in ("first", "second")]
    requests = [SubmissionRequest(run, make_spec(), [], project) for run in runs]
    with hold_all([runs[1].lock], "another command"), pytest.raises(RunHeldError, match="second"):
        prepare(requests, LOGIN_NODE)
    assert [run.submission_numbers() for run in runs] == [[], []]
