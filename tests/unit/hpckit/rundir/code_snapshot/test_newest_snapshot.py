"""Which snapshot of a root the next one shares its files with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hpckit.config.spec_parser import SpecError
from hpckit.rundir.code_snapshot import newest_snapshot, shared_copies
from hpckit.rundir.code_snapshot.snapshot import Project
from hpckit.rundir.directory import RunDir
from hpckit.submit.preparation import move_aside
from hpckit.submit.submission_files import add_amended_submission, add_submission
from hpckit.system.atomic_files import read_json
from tests.unit.hpckit.specs_and_processes import make_spec


@pytest.fixture(autouse=True)
def _old_files_of_one_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a checkout that was made a while ago; without hpckit's own, of which there are many."""
    monkeypatch.setattr(shared_copies, "SETTLED_S", -10.0)
    monkeypatch.setattr("hpckit.rundir.code_snapshot.snapshot.PACKAGES", ())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/a.py").write_text("first\n")
    return Project(tmp_path / "project", git=False)


def submitted(root: Path, name: str, project: Project) -> RunDir:
    run = RunDir(root / name)
    run.path.mkdir(parents=True, exist_ok=True)
    add_submission(run, make_spec(), [], project)
    return run


def shares(run: RunDir) -> bool:
    """Whether its newest submission has a file of an earlier one."""
    number = run.submission_numbers()[-1]
    found = bool(read_json(run.submission(number) / "manifest.json")["snapshot"]["shared"])
    assert found is ((run.code(number) / "a.py").stat().st_nlink > 1)
    return found


def test_runs_of_a_root_and_submissions_of_a_run_share_their_files(
    tmp_path: Path, project: Project
) -> None:
    assert not shares(submitted(tmp_path / "r", "t-1", project))
    assert shares(submitted(tmp_path / "r", "t-1", project))
    assert shares(submitted(tmp_path / "r", "t-2", project))
    assert not shares(submitted(tmp_path / "elsewhere", "t-2", project))
    names = [path.name for path in (tmp_path / "r").iterdir() if not path.name.startswith(".")]
    assert sorted(names) == ["t-1", "t-2"]


def test_an_amended_submission_shares_all_that_nobody_writes_to(
    tmp_path: Path, project: Project
) -> None:
    run = submitted(tmp_path / "r", "t-1", project)
    assert add_amended_submission(run, make_spec(), ["launch.nodes=1"], 1) == 2
    assert (run.code(2) / "a.py").samefile(run.code(1) / "a.py")


def test_a_submission_that_is_not_allowed_leaves_nothing(tmp_path: Path, project: Project) -> None:
    def refuse() -> None:
        raise SpecError(["a job of it waits"])

    run = RunDir(tmp_path / "r" / "t-1")
    run.path.mkdir(parents=True)
    with pytest.raises(SpecError, match="a job of it waits"):
        add_submission(run, make_spec(), [], project, refuse)
    assert list((tmp_path / "r").rglob("*")) == [run.path]
    submitted(tmp_path / "r", "t-1", project)
    with pytest.raises(SpecError):
        add_submission(run, make_spec(), [], project, refuse)
    assert run.submission_numbers() == [1]
    assert list(run.submissions.iterdir()) == [run.submission(1)]


def test_another_project_shares_nothing(tmp_path: Path, project: Project) -> None:
    submitted(tmp_path / "r", "t-1", project)
    other = Project(Path(shutil.copytree(project.root, tmp_path / "other")), git=False)
    assert not shares(submitted(tmp_path / "r", "t-2", other))
    assert shares(submitted(tmp_path / "r", "t-3", project)), "each has its own newest"


def test_a_run_that_was_moved_aside_is_shared_from(tmp_path: Path, project: Project) -> None:
    run = submitted(tmp_path / "r", "t-1", project)
    move_aside(run, make_spec())
    assert shares(submitted(tmp_path / "r", "t-1", project))


def test_the_newest_run_may_be_gone(tmp_path: Path, project: Project) -> None:
    shutil.rmtree(submitted(tmp_path / "r", "t-1", project).path)
    assert newest_snapshot.newest_snapshot(tmp_path / "r", project.root) is None
    assert not shares(submitted(tmp_path / "r", "t-1", project))
    assert shares(submitted(tmp_path / "r", "t-2", project))


def test_what_others_could_have_changed_is_not_shared(tmp_path: Path, project: Project) -> None:
    run = submitted(tmp_path / "r", "t-1", project)
    run.path.chmod(0o775)
    assert newest_snapshot.newest_snapshot(tmp_path / "r", project.root) is None
    run.path.chmod(0o755)
    assert newest_snapshot.newest_snapshot(tmp_path / "r", project.root) == run.submission(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives things to others")
@pytest.mark.parametrize("whose", ["link", "file"])
def test_what_another_user_has_made_is_not_shared(
    tmp_path: Path, project: Project, whose: str
) -> None:
    run = submitted(tmp_path / "r", "t-1", project)
    (link,) = (tmp_path / "r").glob(".newest-*")
    os.chown(link if whose == "link" else run.code(1) / "a.py", 12345, -1, follow_symlinks=False)
    assert not shares(submitted(tmp_path / "r", "t-2", project))


def test_a_root_that_takes_no_link_is_told_of(
    tmp_path: Path, project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    run = submitted(tmp_path / "r", "t-1", project)
    (link,) = (tmp_path / "r").glob(".newest-*")
    link.unlink()
    link.mkdir()  # which no link replaces
    submitted(tmp_path / "r", "t-2", project)
    assert "the next snapshot shares no file with this one" in caplog.text
    assert sorted(path.name for path in run.path.parent.iterdir()) == [link.name, "t-1", "t-2"]
