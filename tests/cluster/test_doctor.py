"""`hpckit doctor` on a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.cluster.slurm import Slurm
from tests.integration.cli.run_commands import HPCKIT

CPU = ("cluster=slurm", "cluster.device=cpu", "cluster.slurm.gpus=none")


def asked(slurm: Slurm, folder: Path, *words: str) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [HPCKIT, "doctor", "--json", *CPU, f"checkpoint.url={folder / 'store'}", *words],
        env=os.environ | slurm.cluster.env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    found = json.loads(done.stdout)
    assert found["worst"] in {one["level"] for one in found["findings"]}
    return done.returncode, found["findings"]


def test_a_cluster_is_looked_at_from_here_and_from_a_node(slurm: Slurm, tmp_path: Path) -> None:
    status, found = asked(slurm, tmp_path, "--node", "cluster.grace_s=1000")
    assert status == 0, found
    by_part = {part: [one for one in found if one["part"] == part] for part in ("slurm", "node")}
    assert {one["part"] for one in found} == {"here", "checkpoints", *by_part}
    told = {one["subject"]: one for one in by_part["slurm"]}
    assert told["preemption"]["level"] == "warn"
    assert told["preemption"]["do"].startswith("set cluster.grace_s=")
    assert told["processes"]["level"] in ("ok", "warn")
    software = next(one["what"] for one in by_part["node"] if one["subject"] == "software")
    assert "torch 2." in software
    assert not (tmp_path / "store").exists()


def test_what_will_not_work_is_exit_status_1(ports: Slurm, tmp_path: Path) -> None:
    status, found = asked(ports, tmp_path, "cluster.slurm.partition=nowhere", "--node")
    assert status == 1
    fails = {one["subject"]: one for one in found if one["level"] == "fail"}
    assert fails["partition"]["do"] == "set cluster.slurm.partition to one of low, high"
    assert "Invalid partition" in fails["node"]["what"]
