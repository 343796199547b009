"""The scripts of `slurm/`, for people who submit jobs themselves."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from hpckit.config.spec_parser import read_spec
from hpckit.rundir.directory import RunDir
from tests.cluster.launched import UNHURRIED, Launched
from tests.cluster.slurm import PATIENCE_S, Slurm, wait_for
from tests.cluster.wrapped import SIZE, begun, environment, overrides, wrapper
from tests.integration.run.runs import PACED, REPO, assert_same_run

NOTE = "a b  'c' \"d\" $(touch evil) `touch evil` ; * é"


def test_a_job_of_ones_own_goes_on_after_it_had_to_leave(
    ports: Slurm, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    note = NOTE.replace("'", "\\'")
    slow = (UNHURRIED, "user_config.unhurried=2", "user_config.step_s=1")
    words = overrides(tmp_path / "runs", shards, *slow, f"user_config.note='{note}'")
    log = tmp_path / "job.log"
    options = ("--parsable", f"--output={log}", *SIZE)
    done = wrapper(ports, "sbatch", *options, "slurm/train.sbatch", *words)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    it = Launched(ports, begun(tmp_path / "runs"))
    it.wait_for_step(23)
    ports.run("scancel", "--signal=USR2", "--batch", job)  # as Slurm does before the time limit
    it.wait_for("training_started", 2)
    ports.run("scontrol", "requeue", job)  # by a person
    it.wait_for("run_ended", 3)
    ports.wait_for_job(job, "COMPLETED")
    assert_same_run(it.run, reference)
    assert it.verdicts() == ["preempted", "preempted", "done"]
    assert len(it.events("job_requeued", job=job)) == 2
    assert it.events("degraded") == []
    assert [event["job"] for event in it.events("run_started")] == [job, job, job]
    assert it.run.submission_numbers() == [1], "with the code that it began with"
    assert read_spec(it.run.spec(1)).user_config["note"] == NOTE
    assert not (REPO / "evil").exists()


def test_an_allocation_of_ones_own_is_followed_and_stopped(
    ports: Slurm, tmp_path: Path, shards: Path
) -> None:
    words = (
        "slurm/interactive.sh",
        *SIZE,
        "--",
        *overrides(tmp_path, shards, PACED, "train.steps=5000"),
    )
    with subprocess.Popen(
        words,
        env=environment(ports),
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        it = Launched(ports, begun(tmp_path))
        it.wait_for_step(3)
        (job,) = psutil.Process(process.pid).children()  # salloc puts it before the terminal
        os.killpg(job.pid, signal.SIGINT)  # as Ctrl-C does
        said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, said
    assert "training on 2 ranks from step 0" in said
    assert "stopping after a save" in said
    assert "every rank saved and exited" in " ".join(said.split())
    assert it.verdicts() == ["stopped"]
    wait_for(lambda: ports.run("squeue", "--noheader") == "", "an end of the allocation")


def test_what_cannot_be_run_is_said_in_the_jobs_log(
    ports: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "job.log"
    monkeypatch.setenv("SBATCH_SIGNAL", "USR1@30")
    options = ("--wait", f"--output={log}", "--mem=200M")
    words = (f"root={tmp_path}/runs", "launch.nodes=2", "cluster.device=cpu")
    done = wrapper(ports, "sbatch", *options, "slurm/train.sbatch", *words)
    assert done.returncode == 2
    warning, error = log.read_text().splitlines()
    assert warning.startswith("warning: SBATCH_SIGNAL was set in the shell that submitted this job")
    assert error == "error: launch.nodes: the job has 1; sbatch --nodes=2 gives it more"
    assert wrapper(ports, "slurm/interactive.sh", "train.steps=1").returncode == 2
