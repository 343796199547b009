"""A campaign on a Slurm whose nodes and daemons fail, by commands of the site."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from hpckit.faults.campaign.fault_schedule import STEP_S, ScheduledFault, save_schedule
from hpckit.faults.fault_plan import DrillKind
from slurm.devcluster.files.folder import VARIABLE
from tests.cluster.launched import SLURM
from tests.cluster.slurm import PATIENCE_S, Slurm
from tests.integration.cli.run_commands import HPCKIT
from tests.integration.run.runs import REPO

STEPS = 140
"""Enough after the last fault: on a busy machine, its command takes some seconds."""
SCHEDULE = (
    ScheduledFault(15, "parted", 0.9),
    ScheduledFault(30, "controller", 0.0),
    ScheduledFault(38, "lossy", 0.0),
    ScheduledFault(45, "daemon", 0.9),
    ScheduledFault(60, DrillKind.PREEMPT, 0.0),
    ScheduledFault(80, "gone", 0.0),
)


def test_nothing_is_lost_whatever_the_site_does(
    namespaces: Slurm, tmp_path: Path, shards: Path
) -> None:
    save_schedule(tmp_path / "faults.jsonl", SCHEDULE)
    done = subprocess.run(
        [
            *(HPCKIT, "drill", "campaign", "--json", f"--folder={tmp_path / 'c'}"),
            *(f"--minutes={STEPS * STEP_S / 60}", f"--replay={tmp_path / 'faults.jsonl'}"),
            *("--site=slurm/devcluster/faults.yaml", *SLURM, "elastic=spares"),
            *("data=shards", f"data.shards={shards}", "checkpoint.every_steps=10"),
        ],
        cwd=REPO,
        env=os.environ | namespaces.cluster.env | {VARIABLE: str(namespaces.cluster.folder.path)},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["problems"] == []
    assert (result["faults"], result["steps"]) == (len(SCHEDULE), STEPS)
    assert {"parted", "gone", "preempt"} <= {row["kind"] for row in result["rows"]}
    namespaces.reset(PATIENCE_S)  # Slurm may take its time to see that a node is there again
