"""`hpckit init` on a real Slurm: it takes jobs by the file of the site that is written."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from hpckit.rundir.directory import RunDir
from tests.cluster.launched import Launched
from tests.cluster.slurm import PATIENCE_S, Slurm
from tests.integration.cli.run_commands import HPCKIT


def typed(slurm: Slurm, cwd: Path, *words: str) -> str:
    done = subprocess.run(
        [HPCKIT, *words],
        cwd=cwd,
        env=os.environ | slurm.cluster.env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_slurm_takes_jobs_by_the_file_of_its_site(ports: Slurm, tmp_path: Path) -> None:
    words = ("init", "mine", "--site", "here", "--node", "--json")
    told = json.loads(typed(ports, tmp_path, *words))
    keys = {key["name"]: key for key in told["site"]["keys"]}
    mine = tmp_path / "mine"
    assert "conf/cluster/here.yaml" in told["files"]
    assert (keys["partition"]["value"], keys["gpus"]["value"]) == ("low", "gpus-per-node")
    assert keys["container"]["how"] == "found", "on a node"
    launch = ("launch", "experiment=first", "cluster=here", "launch.nproc_per_node=4")
    held = "cluster.slurm.options={hold: true}"
    shown = typed(ports, mine, *launch, held, "--dry-run")
    for option in ("partition=low", "gpus-per-node=4", f"mem={keys['memory']['value']}"):
        assert f"#SBATCH --{option}\n" in shown
    typed(ports, mine, *launch, held)
    (job,) = Launched(ports, RunDir(next((mine / "runs").glob("first-*")))).jobs()
    found = ports.job(job)
    assert (found["Partition"], found["Reason"]) == ("low", "JobHeldUser")
    assert found["NumCPUs"] == str(keys["cpus_per_node"]["value"])
    ports.run("scancel", job)
