"""A canary's job as a gate for a larger one: `sbatch --dependency=afterok:JOB`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.launched import launch, submitted_job
from tests.cluster.slurm import Slurm
from tests.integration.run.runs import command, complete


def test_what_waits_for_a_canary_begins_only_if_it_finds_nothing(
    ports: Slurm, tmp_path: Path, shards: Path
) -> None:
    golden, said = tmp_path / "golden.json", tmp_path / "said"
    few = ("debug=canary", f"debug.canary.file={golden}", "debug.canary.steps=4")
    bird = (*few, "launch.nodes=1", "debug.ledger=false")
    recorded = command(tmp_path / "here", shards, *bird, "debug.canary.mode=record")
    status, output = complete(tmp_path / "here", recorded)
    assert status == 0, output

    def gated(root: Path, *options: str) -> str:
        it = launch(ports, root, shards, *bird, "launch.continuation=none")
        waits = f"--dependency=afterok:{submitted_job(it.run)}"
        return ports.submit("echo went", said, waits, *options)

    ports.wait_for_job(gated(tmp_path / "same"), "COMPLETED")
    assert said.read_text() == "went\n"
    found = json.loads(golden.read_text())
    found["steps"][2]["loss"] *= 1.01
    golden.write_text(json.dumps(found))
    ports.wait_for_job(gated(tmp_path / "other", "--kill-on-invalid-dep=yes"), "CANCELLED")
    assert said.read_text() == "went\n"
