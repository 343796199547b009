"""A run is its directory: its jobs are found among all others, whatever the name of any job is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hpckit.rundir.directory import RunDir
from tests.cluster.launched import UNHURRIED, Launched, launch
from tests.cluster.slurm import PATIENCE_S, Slurm

SLOW = (UNHURRIED, "user_config.step_s=1", "launch.nodes=1", "train.steps=400")


def hpckit(slurm: Slurm, *words: str) -> str:
    """What a command of hpckit prints."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("hpckit")), *words],
        env=os.environ | slurm.cluster.env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def jobs_of(slurm: Slurm, run: RunDir) -> dict[str, str]:
    """The jobs of a run that are not over, with their states, as hpckit reports them."""
    told = json.loads(hpckit(slurm, "status", str(run.path), "--json"))
    return {job["number"]: job["state"] for job in told["jobs"] if job["state"] != "CANCELLED"}


def test_two_directories_with_one_config_train_at_once_and_each_has_its_jobs(
    ports: Slurm, tmp_path: Path, shards: Path
) -> None:
    odd = ("--hold", "--mem=50", "--output=/dev/null")
    het = ports.run("sbatch", "--parsable", *odd, "-Jhet", ":", "--mem=50", "--wrap", "true")
    ports.run("sbatch", *odd, "--job-name=a\nb|1|RUNNING", "--array=0-9:2%3", "--wrap", "true")
    one = launch(ports, tmp_path / "one", shards, *SLOW)
    two = launch(ports, tmp_path / "two", shards, *SLOW)
    assert one.run.name == two.run.name
    for it in (one, two):
        it.wait_for("successor_queued")
    one.wait_for_step(1)
    two.wait_for_step(1)
    assert one.events("run_ended") == [], "both train"
    first, second = (jobs_of(ports, it.run) for it in (one, two))
    assert sorted(first.values()) == sorted(second.values()) == ["PENDING", "RUNNING"]
    assert not first.keys() & second.keys()
    successor = one.events("successor_queued")[0]["job"]
    for number in first:
        ports.run("scontrol", "update", f"JobId={number}", "JobName=renamed")
    assert jobs_of(ports, one.run) == first
    assert "running" in hpckit(ports, "why", str(one.run.path))
    hpckit(ports, "cancel", str(one.run.path), "--timeout", str(int(PATIENCE_S)))
    assert jobs_of(ports, one.run).keys().isdisjoint({successor})
    assert jobs_of(ports, two.run) == second, "the other one trains on"
    assert ports.job(het.strip())["JobState"] == "PENDING"
    _end(ports, two)


def _end(slurm: Slurm, it: Launched) -> None:
    slurm.run("scancel", "--user", slurm.cluster.plan.user)
    it.wait_until_over()
