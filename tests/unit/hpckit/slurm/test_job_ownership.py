"""Which jobs carry a run: those that say so, whatever their name."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.rundir.directory import RunDir
from hpckit.slurm.job_ownership import commented_folder, is_job_of_run, job_comment

NAME = "t-1a2b3c4d"


def is_mine(run: RunDir, number: str = "7", name: str = NAME, **more: object) -> bool:
    told = {"comment": "", "command": "", "is_recorded": False} | more
    return is_job_of_run(run, number, name, **told)  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "runs" / NAME)
    run.submitit.mkdir(parents=True)
    return run


@pytest.fixture
def twin(tmp_path: Path) -> RunDir:
    """A run of the same name in another root."""
    run = RunDir(tmp_path / "others" / NAME)
    run.submitit.mkdir(parents=True)
    return run


def script(run: RunDir) -> str:
    return str(run.submitit / "submission_file_1.sh")


@pytest.mark.parametrize("name", [NAME, "renamed by a plug-in", "t", ""])
def test_a_job_is_found_by_its_comment_or_its_script(run: RunDir, name: str) -> None:
    assert is_mine(run, name=name, comment=job_comment(run.path))
    assert is_mine(run, name=name, comment=f"project-7 {job_comment(run.path)}")
    assert is_mine(run, name=name, command=script(run))
    assert is_mine(run, name=name, comment="of the user", command=script(run))
    assert is_mine(run, name=name, comment=job_comment(run.path), command="/tmp/copied.sh")


def test_one_of_a_run_of_the_same_name_is_not(run: RunDir, twin: RunDir) -> None:
    assert not is_mine(run)
    for recorded in (True, False):  # a reinstalled cluster counts from 1 again
        assert not is_mine(run, is_recorded=recorded, comment=job_comment(twin.path))
        assert not is_mine(run, is_recorded=recorded, command=script(twin))


def test_one_of_an_earlier_release_has_its_number_and_its_name(run: RunDir) -> None:
    assert is_mine(run, is_recorded=True)
    assert is_mine(run, is_recorded=True, command="/home/u/slurm/train.sbatch", comment="mine")
    assert not is_mine(run, name="another", is_recorded=True)
    assert is_mine(run, "7_2", "t-sweep-001", is_recorded=True)
    assert not is_mine(run, "7_2", "u-sweep-001", is_recorded=True)


def test_a_directory_may_have_several_paths(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run.path.parent)
    assert is_mine(run, comment=job_comment(tmp_path / "link" / NAME))
    unseen = Path("/on/other/nodes") / NAME
    assert is_mine(run, comment=job_comment(unseen), is_recorded=True)
    assert not is_mine(run, comment=job_comment(unseen), is_recorded=False)


def test_a_task_is_of_the_run_that_its_sweep_has_at_its_place(
    run: RunDir, twin: RunDir, tmp_path: Path
) -> None:
    sweep = tmp_path / "runs" / "t-sweep-001"
    (sweep / "runs").mkdir(parents=True)
    (sweep / "runs" / "0").symlink_to(twin.path)
    (sweep / "runs" / "1").symlink_to(run.path)
    how = {"comment": job_comment(sweep), "name": "renamed"}
    assert is_mine(run, "7_1", **how)
    assert not is_mine(run, "7_0", **how)
    assert is_mine(run, "7_1", "renamed", command=str(sweep / "submitit" / "s.sh"))


@pytest.mark.parametrize(
    ("comment", "folder"),
    [("", None), ("hpckit:", None), ("hpckit:runs", None), ("a hpckit:/a b", Path("/a b"))],
)
def test_what_a_comment_names(comment: str, folder: Path | None) -> None:
    assert commented_folder(comment) == folder
