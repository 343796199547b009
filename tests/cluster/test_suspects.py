"""A node that one run has excluded: another run, elsewhere, does without it until it is cleared."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hpckit.config.spec_parser import read_spec
from tests.cluster.launched import SLURM, launch
from tests.cluster.slurm import Slurm
from tests.cluster.test_health import PROBLEM, SHORT, put_first
from tests.integration.cli.run_commands import HPCKIT

HOOK = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"


def test_another_run_does_without_it_until_it_is_cleared(
    ports: Slurm, tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = (node.name for node in ports.cluster.nodes)
    repaired, told = tmp_path / "repaired", tmp_path / "told"
    script = (
        f'[ "$SLURMD_NODENAME" = {shlex.quote(first)} ] && [ ! -e {repaired} ] && errors=3 || '
        "errors=0\n"
        'case "$1" in\n'
        '--query-gpu=*) echo "0, GPU-1, 00000000:3B:00.0, $errors, No" ;;\n'
        '*) echo "GPU-1, 0, 0" ;;\n'
        "esac\n"
    )
    put_first(tmp_path, "nvidia-smi", script, monkeypatch)
    hook = json.dumps([sys.executable, "-c", HOOK, str(told)])
    small = (*SHORT, "launch.nodes=1", f"cluster.slurm.suspects.hook={hook}")

    it = launch(ports, tmp_path / "a", shards, *small)
    reported = it.wait_for("suspect_reported")
    assert (reported["host"], reported["problem"]) == (first, PROBLEM)
    assert it.wait_for("run_started", 2)["hosts"] == [second]
    it.wait_for("run_ended", 2)
    it.wait_until_over()
    assert json.loads(told.read_text())["run"] == str(it.run.path)

    other = launch(ports, tmp_path / "b", shards, *small, "launch.continuation=auto")
    assert read_spec(other.run.spec(1)).launch.continuation == "chain", "Slurm 22.05 has no other"
    begun = other.wait_for("run_started")
    assert begun["hosts"] == [second]
    assert ports.job(begun["job"])["ExcNodeList"] == first

    def nodes(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [HPCKIT, "nodes", *words],
            env={**os.environ, **ports.cluster.env},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout + done.stderr

    status, shown = nodes()
    assert status == 0, shown
    assert f"{first}: {PROBLEM}\n" in shown
    assert f"run {it.run.path}, job {it.events('run_started')[0]['job']}, 1 event" in shown
    assert f"    scontrol update nodename={first} state=drain " in shown
    place = (*SLURM, "cluster.device=auto", f"root={tmp_path}")
    assert nodes("check", first, *place)[0] == 1
    assert "    unhealthy; left out until " in nodes()[1]
    repaired.touch()
    status, said = nodes("check", first, *place, "--clear")
    assert (status, said) == (0, f"{first}: no problem found, and it may be used again\n")
    third = launch(ports, tmp_path / "c", shards, *small)
    job = third.wait_for("run_started")["job"]
    assert ports.job(job)["ExcNodeList"] in ("", "(null)")
