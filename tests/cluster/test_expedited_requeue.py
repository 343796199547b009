"""Runs on a Slurm that requeues jobs ahead of all others (`sbatch --requeue=expedite`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpckit.rundir.directory import RunDir
from tests.cluster import guard
from tests.cluster.conftest import need, options
from tests.cluster.launched import UNHURRIED, launch
from tests.cluster.slurm import Slurm, wait_for
from tests.integration.cli.run_commands import Typed
from tests.integration.run.runs import assert_same_run

pytestmark = pytest.mark.since_slurm("25.11")


@pytest.fixture(scope="module")
def expediting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Three nodes. A lost one is given up later than any program of a run notices the loss."""
    need("ports")
    chosen = replace(options("ports"), slurmd_timeout_s=30)
    enabled = "SlurmctldParameters=preempt_send_user_signal,enable_expedited_requeue"
    chosen = replace(chosen, settings=(*chosen.settings, enabled))
    with guard.cluster(tmp_path_factory.mktemp("expediting"), chosen) as cluster:
        yield Slurm(cluster)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_run_that_loses_a_node_goes_on_before_other_jobs(
    expediting: Slurm, tmp_path: Path, shards: Path, reference: RunDir, lost: int
) -> None:
    """The node of the supervisor, or the other one; the first run is preempted before that."""
    slow = (UNHURRIED, "user_config.unhurried=2")
    auto = ("launch.continuation=auto", "cluster.grace_s=1")
    it = launch(expediting, tmp_path, shards, *slow, *auto)
    it.wait_for_step(23)
    job = it.wait_for("run_started")["job"]
    if lost == 1:
        all_nodes = ("--partition=high", "--nodes=3", "--exclusive")
        expediting.submit("true", tmp_path / "high.log", *all_nodes)
        assert it.wait_for("run_started", 2)["job"] == job
        it.wait_for("training_started", 2)
    *_, started = it.events("run_started")
    left = started["hosts"][1 - lost]
    rival = expediting.submit("true", tmp_path / "rival.log", "--exclusive", f"--nodelist={left}")
    expediting.cluster.node(started["hosts"][lost]).kill()
    again = it.wait_for("run_started", len(it.events("run_started")) + 1)
    assert (again["job"], left in again["hosts"]) == (job, True)
    assert it.wait_for("run_ended", verdict="done")
    expediting.wait_for_job(job, "COMPLETED")
    assert_same_run(it.run, reference)
    it.wait_until_over()
    expediting.wait_for_job(rival, "COMPLETED")
    ended = expediting.job(job)["EndTime"]
    assert expediting.job(rival)["StartTime"] >= ended, "it was submitted before the node was lost"
    assert it.events("start_expedited") == []
    expediting.reset()


def test_a_job_that_fails_before_its_supervisor_starts_is_on_hold(
    expediting: Slurm, tmp_path: Path, shards: Path
) -> None:
    words = ("launch.continuation=expedite", "cluster.slurm.setup=['exit 3']")
    it = launch(expediting, tmp_path, shards, *words, "launch.nodes=1")
    (job,) = it.jobs()
    wait_for(lambda: expediting.job(job)["JobState"] == "REQUEUE_HOLD", "a job on hold")
    typed = Typed(it.run, expediting.cluster.env)
    told = {fact["name"]: fact["text"] for fact in typed.json("why")["facts"]}
    assert f"job {job}, job requeued in held state: it ended with an error" in told["waits"]
    assert f"scontrol release {job}" in told["to do"]
    assert "automatically" not in told["next"]
    typed.text("cancel")
    it.wait_until_over()
