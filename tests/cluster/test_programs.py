"""Training scripts as jobs of a real Slurm, signalled by it and carried on by the successor."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hpckit.rundir.directory import RunDir
from tests.cluster.launched import PATIENCE_S, SLURM, Launched
from tests.cluster.slurm import Slurm
from tests.integration.run.program_runs import (
    launch_line,
    losses_by_torchrun,
    losses_of,
    project_with,
)
from tests.integration.run.runs import history


def test_a_script_is_carried_on_by_the_successor(ports: Slurm, tmp_path: Path) -> None:
    expected = losses_by_torchrun("client_script.py", tmp_path / "alone", ranks=2)
    project = project_with(tmp_path / "project", "client_script.py")
    words = launch_line(*SLURM, "launch.nodes=2", "--", "python", "train.py", "0.3")
    env = os.environ | ports.cluster.env
    done = subprocess.run(
        words, cwd=project, env=env, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    it = Launched(ports, RunDir(next(project.glob("t-*"))))
    it.wait_for_step(4)
    job = it.wait_for("run_started")["job"]
    ports.run("scancel", "--batch", "--signal=USR2", job)
    it.wait_for("run_ended", 2)
    it.wait_until_over()
    assert it.verdicts() == ["preempted", "done"]
    assert losses_of(it.run) == expected
    first, second = history(it.run).lives
    assert second.start_step == first.end_step
    assert it.events("run_started")[1]["job"] != job
