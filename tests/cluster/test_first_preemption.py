"""What docs/tasks/first-preemption.md says to type, typed on a real Slurm in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from docs.hooks import ROOT
from hpckit.rundir.directory import RunDir
from tests.cluster.launched import Launched
from tests.cluster.slurm import PATIENCE_S, Slurm
from tests.integration.cli.run_commands import HPCKIT
from tests.integration.run.runs import history
from tests.unit.project.doc_blocks import blocks

PAGE = ROOT / "docs/tasks/first-preemption.md"


def test_five_commands_lead_to_a_preemption_that_is_survived(ports: Slurm, tmp_path: Path) -> None:
    (block,) = [one for one in blocks(PAGE) if one.kind == "command"]
    site, launch, status, drill, report = block.text.splitlines()
    assert launch.endswith(" -- python train.py")
    assert " preempt" in drill
    shutil.copy(ROOT / "examples/ddp/after.py", tmp_path / "train.py")

    typed(ports, tmp_path, site)
    file = tmp_path / "conf/cluster/mine.yaml"  # this cluster's jobs have a second to leave
    file.write_text(re.sub(r"^grace_s: 1 ", "grace_s: 60 ", file.read_text(), flags=re.MULTILINE))
    typed(ports, tmp_path, launch)
    it = Launched(ports, RunDir(next((tmp_path / "runs").glob("train-*"))))
    it.wait_for_step(3)
    with it.paused():
        assert it.run.name in typed(ports, tmp_path, status)
        typed(ports, tmp_path, drill)
        it.wait_for("asked")
    it.wait_for("run_ended", 2)
    it.wait_until_over()
    assert "preempted" in typed(ports, tmp_path, report)

    assert it.verdicts() == ["preempted", "done"]
    first, second = history(it.run).lives
    assert 3 <= first.end_step < 300
    assert second.start_step == first.end_step, "no step was lost, and none was repeated"
    assert second.end_step == 300
    job, successor = (event["job"] for event in it.events("run_started"))
    assert job != successor


def typed(slurm: Slurm, folder: Path, line: str) -> str:
    """What a line prints that somebody types into a shell."""
    path = f"{Path(HPCKIT).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=os.environ | slurm.cluster.env | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout
