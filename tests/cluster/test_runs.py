"""Runs as jobs of a real Slurm: interrupted by it, and carried on to the same end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpckit.cli.common.exit_status import OUT_OF_REACH
from hpckit.faults.injection.process_faults import ProcessFault, victims
from hpckit.rundir.directory import RunDir
from hpckit.rundir.search_path import without_repeats
from hpckit.system.atomic_files import read_json
from slurm.devcluster.cluster import Cluster
from tests.cluster import guard
from tests.cluster.conftest import need, options
from tests.cluster.launched import SLURM, UNHURRIED, launch
from tests.cluster.slurm import PATIENCE_S, Slurm
from tests.integration.cli.run_commands import Typed
from tests.integration.run.runs import (
    ALONE,
    ON_ONE_NODE,
    PACED,
    assert_same_run,
    command,
    history,
    kill,
)


@pytest.fixture(scope="module", params=[True, False], ids=["told", "not told"])
def patient(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """One whose jobs have time to leave; Slurm tells of a preemption by the signal of the job, or,
    as it does by itself, by SIGTERM to the steps alone."""
    need("ports")
    chosen = replace(options("ports"), grace_s=30, user_signal=request.param)
    with guard.cluster(tmp_path_factory.mktemp("patient"), chosen) as cluster:
        yield cluster


def test_preempted_and_carried_on_by_the_successor(
    patient: Cluster, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    slurm = Slurm(patient)
    paths = tmp_path / "paths"
    lines = (f"'echo $PYTHONPATH,$PATH,$LIBPATH >> {paths}'", "'export PATH=/opt:$PATH LIBPATH=/l'")
    setup = f"cluster.slurm.setup=[{','.join(lines)}]"
    it = launch(slurm, tmp_path, shards, UNHURRIED, setup)
    it.wait_for_step(23)
    slurm.run("srun", "--partition=high", "--nodes=3", "--exclusive", "true", within_s=PATIENCE_S)
    it.wait_for("run_ended", verdict="done")
    it.wait_until_over()
    assert_same_run(it.run, reference)
    # Slurm may start the successor before the preemptor, if that waits for nodes of the first job
    # that are completing, and then preempts the successor, too.
    assert it.verdicts() in (["preempted", "done"], ["preempted", "preempted", "done"])
    assert [life.start_step >= 23 for life in history(it.run).lives][:2] == [False, True]
    first, second = it.events("run_started")[:2]
    assert second["job"] == it.events("successor_queued")[0]["job"] != first["job"]
    before, after = (line.split(",") for line in paths.read_text().splitlines()[:2])
    path = without_repeats(f"/opt:{before[1]}")
    assert after == [without_repeats(before[0]), path, "/l"], "the folders of the first job, once"
    slurm.wait_for_idle()


def test_a_cancelled_job_has_no_successor_and_can_be_resumed(
    ports: Slurm, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    slurm = ports
    it = launch(slurm, tmp_path, shards, *ON_ONE_NODE, UNHURRIED)
    it.wait_for_step(23)
    slurm.run("scancel", it.wait_for("run_started")["job"])
    assert it.wait_for("run_ended")["verdict"] == "stopped"
    it.wait_until_over()
    cancelled, ended = it.events("successor_cancelled")[0], it.events("generation_ended")[0]
    assert cancelled.time < ended.time, "while there was certainly time"
    hpckit = Path(sys.executable).with_name("hpckit")
    environment = os.environ | slurm.cluster.env
    subprocess.run([str(hpckit), "resume", str(it.run.path)], env=environment, check=True)
    it.wait_for("run_ended", 2)
    it.wait_until_over()
    assert_same_run(it.run, reference)
    assert it.verdicts() == ["stopped", "done"]


def test_a_killed_agent_is_replaced_within_the_job_and_a_run_beside_it_feels_nothing(
    ports: Slurm, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    """Both on the same nodes of one host: no port, memory or sweep of one hits the other."""
    here = "cluster.slurm.options={nodelist: 'n[1-2]'}"
    it = launch(
        ports, tmp_path / "one", shards, here, UNHURRIED, "user_config.step_s=1", "hang=none"
    )
    it.wait_for_step(23)
    with it.paused():  # a busy machine may take longer to start the other run than this one has
        beside = launch(ports, tmp_path / "two", shards, here, "name=t-beside")
        beside.wait_for("training_started")
    (agent,) = victims(str(it.run.path), ProcessFault.AGENT, 1)
    agent.kill()
    for run in (it, beside):
        run.wait_for("run_ended")
        run.wait_until_over()
        assert_same_run(run.run, reference)
        (started,) = run.events("run_started")
        assert started["hosts"] == ["n1", "n2"]
    assert it.verdicts() == ["infra", "done"]
    assert beside.verdicts() == ["done"]
    assert [life.reason for life in history(beside.run).lives] == ["reached the last step"]
    ended = it.events("run_ended")[0].time
    assert beside.events("training_started")[0].time < ended, "they were to run at once"


def test_an_error_for_good_is_met_once(ports: Slurm, tmp_path: Path, shards: Path) -> None:
    it = launch(ports, tmp_path, shards, *ALONE, "entry=tests.cluster.failing:main")
    assert it.wait_for("run_ended")["verdict"] == "permanent"
    it.wait_until_over()
    assert it.verdicts() == ["permanent"]
    assert "no module named nowhere" in read_json(it.run.verdict)["reason"]
    assert it.events("successor_cancelled") != []


def test_a_successor_that_was_not_cancelled_in_time_leaves_by_itself(
    ports: Slurm, tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm ends a supervisor that is still at it."""
    scancel = tmp_path / "bin" / "scancel"
    scancel.parent.mkdir()
    scancel.write_text("#!/bin/sh\necho Unable to contact slurm controller >&2\nexit 1\n")
    scancel.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scancel.parent}:{os.environ['PATH']}")
    it = launch(ports, tmp_path, shards, *ALONE, "entry=tests.cluster.failing:main")
    successor = it.wait_for("successor_queued")["job"]
    it.wait_for("generation_ended", verdict="permanent")
    kill(it.events("run_started")[0]["pid"])
    ports.wait_for_job(successor, "COMPLETED")
    it.wait_until_over()
    assert len(it.events("run_started")) == 1
    assert it.events("successor_cancelled")[0]["job"] == successor
    assert it.verdicts() == ["permanent"]


def test_what_slurm_refuses_is_told(ports: Slurm, tmp_path: Path, shards: Path) -> None:
    done = subprocess.run(
        command(tmp_path, shards, *SLURM, "cluster.slurm.partition=nowhere"),
        env=os.environ | ports.cluster.env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: sbatch: ")
    assert "invalid partition" in done.stderr
    assert done.stderr.count("partition") == 2, "told once"


def out_of_reach(slurm: Slurm, conf: Path) -> dict[str, str]:
    """As `slurm.cluster.env`, with a `conf` that leads to a port on which no controller listens."""
    text = slurm.cluster.folder.slurm_conf.read_text()
    conf.write_text(re.sub(r"(?m)^SlurmctldPort=.*$", "SlurmctldPort=1", text))
    return {**slurm.cluster.env, "SLURM_CONF": str(conf)}


def test_the_commands_on_runs_know_slurms_jobs(ports: Slurm, tmp_path: Path, shards: Path) -> None:
    it = launch(ports, tmp_path, shards, PACED, "train.steps=100000")
    typed = Typed(it.run, ports.cluster.env)
    it.wait_for("successor_queued")
    found = typed.wait_until(state="running")
    first, second = (job["number"] for job in found["jobs"])
    assert (found["problem"], found["successor"], found["hosts"]) == (None, second, ["n1", "n2"])
    assert f"job {first} running on n[1-2]" in typed.text("status")
    assert "done hit: process" in typed.text("drill", "slow", "--by=50", "--seconds=1", "--yes")
    typed.text("drill", "node", "--yes")
    found = typed.wait_until(state="running", generation=2)
    assert found["interruptions"] == {"infra": 1}
    assert "every rank saved and exited" in typed.text("cancel", "--save")
    it.wait_until_over()
    held = launch(ports, tmp_path / "held", shards, "cluster.slurm.options.hold=true")
    typed = Typed(held.run, ports.cluster.env)
    assert typed.json("status")["state"] == "queued"
    assert "is in the queue already" in typed.refusal("resume")
    again = (*SLURM, "cluster.slurm.options.hold=true", "--fresh")
    done = subprocess.run(
        command(tmp_path / "held", shards, *again),
        env=os.environ | ports.cluster.env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"job {held.jobs()[0]} (PENDING) is in the queue already" in done.stderr
    assert f"hpckit cancel {held.run.path}" in done.stderr
    assert len(held.jobs()) == 1
    assert "JobHeldUser: its owner has put it on hold" in typed.text("why")
    cut_off = Typed(held.run, out_of_reach(ports, tmp_path / "slurm.conf"))
    assert cut_off.json("status")["state"] == "unknown"
    assert "Slurm does not answer" in cut_off.text("why")
    assert "nothing was done" in cut_off.refusal("cancel", status=OUT_OF_REACH)
    assert "nothing is submitted" in cut_off.refusal("resume", status=OUT_OF_REACH)
    assert "before any of its steps" in typed.text("cancel")
    held.wait_until_over()
