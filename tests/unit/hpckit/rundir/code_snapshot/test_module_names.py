"""What jobs are started by in the code of an earlier release, which runs go on with."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from hpckit.rundir.code_snapshot import module_names
from hpckit.rundir.code_snapshot.module_names import module_in
from hpckit.rundir.directory import RunDir
from hpckit.rundir.requeue_link import supervisor_command
from hpckit.submit.batch_script import interpreter, of_run
from hpckit.submit.job_submission import _Supervise
from tests.unit.hpckit.specs_and_processes import CHECKOUT, make_spec

EARLIER = sorted(module_names._EARLIER.items())


@pytest.fixture
def submission(tmp_path: Path) -> Path:
    """Of a run that was submitted with an earlier release."""
    folder = RunDir(tmp_path).submission(1)
    for _, earlier in EARLIER:
        file = (folder / "code").joinpath(*earlier.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return folder


@pytest.mark.parametrize(("module", "earlier"), EARLIER)
def test_a_snapshot_of_an_earlier_release_has_its_names(
    module: str, earlier: str, submission: Path
) -> None:
    assert module_in(submission / "code", module) == earlier
    assert module_in(CHECKOUT, module) == module
    assert CHECKOUT.joinpath(*module.split(".")).with_suffix(".py").is_file()


def test_its_jobs_are_started_by_them(submission: Path, tmp_path: Path) -> None:
    command, _ = supervisor_command(submission, {})
    assert command[2:4] == ["-m", "hpckit.launch.begin"]
    job = of_run(RunDir(tmp_path), 1)
    spec = make_spec({}, cluster="slurm").cluster.slurm
    assert spec is not None
    assert interpreter(spec, job).endswith(f"{submission / 'code'}/hpckit/launch/hold.py")
    by_name = pickle.dumps(_Supervise(submission / "code"))
    assert b"hpckit.launch.supervise:supervise" in by_name
