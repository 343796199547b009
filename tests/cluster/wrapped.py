"""Runs that are submitted by the scripts of `slurm/`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hpckit.rundir.directory import RunDir
from tests.cluster.launched import SLURM
from tests.cluster.slurm import PATIENCE_S, Slurm, wait_for
from tests.integration.run.runs import REPO, command

SIZE = ("--nodes=2", "--cpus-per-task=2", "--mem=900M")


def environment(slurm: Slurm) -> dict[str, str]:
    state = {"XDG_STATE_HOME": str(slurm.cluster.folder.path / "state")}  # it goes with the cluster
    return os.environ | slurm.cluster.env | state | {"HPCKIT_PYTHON": sys.executable}


def wrapper(slurm: Slurm, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as somebody in the project's folder."""
    return subprocess.run(
        words,
        env=environment(slurm),
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def overrides(root: Path, shards: Path, *more: str) -> list[str]:
    """Those of a small run, without what the job itself says."""
    words = command(root, shards, *SLURM, *more)[2:]
    return [w for w in words if not w.startswith(("cluster=", "launch.nodes="))]


def begun(root: Path) -> RunDir:
    """The run below `root`, once there is one."""
    wait_for(lambda: any(root.glob("t-*/logs")), "a run", PATIENCE_S)
    return RunDir(next(root.glob("t-*")))
