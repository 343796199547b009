"""What ends the generations of a job: its time, Slurm's controller (which does not), its memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json
from hpckit.system.child_processes import strays
from tests.cluster.launched import UNHURRIED, launch
from tests.cluster.slurm import Slurm, wait_for
from tests.integration.cli.run_commands import Typed
from tests.integration.run.runs import ON_ONE_NODE, assert_same_run, history


def test_a_run_outlives_the_controller_and_goes_on_beyond_its_time_limit(
    ports: Slurm, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    """Slurm itself tells the first job that its time is up; of the second one it is a drill."""
    slow = (*ON_ONE_NODE, UNHURRIED, "user_config.unhurried=2", "user_config.step_s=1.5")
    it = launch(ports, tmp_path, shards, *slow, "cluster.slurm.notice_s=90")
    typed = Typed(it.run, ports.cluster.env)
    first, second = it.wait_for("run_started")["job"], it.wait_for("successor_queued")["job"]
    it.wait_for("training_started")
    wait_until_written(ports, tmp_path)
    ports.cluster.controller.kill()
    it.wait_for_step(22)
    assert "Slurm does not answer" in typed.text("status")
    ports.cluster.controller.start()
    assert ports.job(second)["JobState"] == "PENDING"
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 60))
    ports.run("scontrol", "update", f"JobId={first}", f"EndTime={end}")
    it.wait_for("training_started", 2)
    assert f"job {it.wait_for('successor_queued', 2)['job']} continues" in typed.text(
        "drill", "timeout", "--yes"
    )
    it.wait_for("training_started", 3)
    assert typed.json("status")["interruptions"] == {"time_limit": 2}
    it.wait_for("run_ended", 3)
    it.wait_until_over()
    assert_same_run(it.run, reference)
    assert it.verdicts() == ["time_limit", "time_limit", "done"]
    lives = history(it.run).lives
    assert [life.start_step for life in lives[1:]] == [life.end_step for life in lives[:-1]]
    assert all(life.start_step > 20 for life in lives[1:])


def wait_until_written(slurm: Slurm, folder: Path) -> None:
    """Slurm's controller has written down what it knows by now."""
    name = f"mark-{time.time_ns()}"
    slurm.submit("true", folder / "mark", f"--job-name={name}", "--hold")
    state = slurm.cluster.folder.state / "job_state"
    wait_for(lambda: state.exists() and name.encode() in state.read_bytes(), "a written state")
    slurm.run("scancel", f"--name={name}")


def test_jobs_that_give_no_checkpoint_end_the_run(
    ports: Slurm, tmp_path: Path, shards: Path
) -> None:
    """Each of them is preempted before it trains, whatever its start takes."""
    it = launch(ports, tmp_path, shards, UNHURRIED, "retry.jobs_without_checkpoint=3")
    for count in (1, 2, 3):
        job = it.wait_for("run_started", count)["job"]
        it.wait_for("successor_queued", count)
        ports.run("scancel", "--batch", "--signal=USR2", job)
        it.wait_for("run_ended", count)
    it.wait_until_over()
    assert [event["verdict"] for event in it.events("run_ended")] == [
        *("preempted", "preempted", "permanent")
    ]
    (told,) = it.events("degraded", subject="checkpoint_progress")
    assert "2 jobs in a row gave no new checkpoint in" in told["what"]
    assert "the run ends after 3 times" in told["what"]
    verdict = Typed(it.run, ports.cluster.env).json("status")["verdict"]
    assert (verdict["kind"], verdict["final"]) == ("permanent", True)
    assert "3 jobs in a row gave no new checkpoint in" in verdict["reason"]
    assert "raise cluster.slurm.time_limit" in verdict["reason"]


def test_a_worker_beyond_the_memory_of_its_job_is_told_from_one_that_was_killed(
    namespaces: Slurm, tmp_path: Path, shards: Path
) -> None:
    if not namespaces.cluster.plan.has_cgroups:
        pytest.skip("there are no version 1 cgroups here, by which Slurm limits memory")
    greedy = ("entry=tests.cluster.greedy:main", "launch.nodes=2", "retry.oom=0")
    it = launch(namespaces, tmp_path, shards, *greedy)
    assert it.wait_for("run_ended")["verdict"] == "oom"
    it.wait_until_over()
    assert it.verdicts() == ["oom"]
    lacks = it.events("out_of_memory", memory="host", by_kernel=True, step=7)
    assert [lack["attempt"] for lack in lacks] == [0, 1], "started again once, of three times"
    assert "cluster.slurm.memory" in read_json(it.run.verdict)["reason"]
    assert "with settings that need less memory" in Typed(it.run, namespaces.cluster.env).text(
        "why"
    )
    assert it.events("successor_cancelled") != []
    assert strays(it.run.path) == []
