"""A job that is told to leave before anybody in it can hear that."""

from __future__ import annotations

from pathlib import Path

from hpckit.rundir.directory import RunDir
from tests.cluster.launched import launch
from tests.cluster.slurm import Slurm, wait_for
from tests.integration.run.runs import ON_ONE_NODE, assert_same_run


def test_a_job_that_is_told_to_leave_in_its_set_up_is_not_lost(
    ports: Slurm, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    begun, told = tmp_path / "begun", tmp_path / "told"
    wait = f"until [ -e {told} ]; do sleep 0.1; done; sleep 4"  # as Slurm signals a job in a moment
    setup = f"cluster.slurm.setup=['touch {begun}','{wait}']"
    it = launch(ports, tmp_path / "runs", shards, *ON_ONE_NODE, setup)
    wait_for(begun.exists, "its set-up")
    ports.run("scancel", "--batch", "--signal=TERM", it.jobs()[0])
    told.touch()
    assert it.wait_for("run_ended")["verdict"] == "done"
    it.wait_until_over()
    assert_same_run(it.run, reference)
