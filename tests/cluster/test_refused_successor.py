"""A site whose limit of submitted jobs counts the running one, so that no successor is accepted."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.launched import UNHURRIED, launch
from tests.cluster.slurm import Slurm
from tests.integration.cli.run_commands import Typed

REFUSAL = (
    "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)


@dataclass(frozen=True)
class Limited:
    """A cluster whose sbatch refuses what a job submits."""

    folder: Path
    real: str | None

    def __post_init__(self) -> None:
        self.folder.mkdir()
        tool = self.folder / "sbatch"
        tool.write_text(
            f'#!/bin/sh\nif [ -n "$SITE_IN_JOB" ]; then\ncat >&2 <<"END"\n{REFUSAL}\nEND\nexit 1\n'
            f'fi\nexec {self.real} "$@"\n'
        )
        tool.chmod(0o755)


def test_why_tells_what_was_refused_and_what_helps(
    ports: Slurm, tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("sbatch", path=ports.cluster.env["PATH"])
    limited = Limited(tmp_path / "site", real)
    monkeypatch.setenv("PATH", f"{limited.folder}:{os.environ['PATH']}")
    path = f"export SITE_IN_JOB=1 PATH={limited.folder}:$PATH"  # sbatch sees no SLURM_JOB_ID
    setup = f"cluster.slurm.setup=['{path}']"
    it = launch(ports, tmp_path / "runs", shards, UNHURRIED, "launch.nodes=1", setup)
    it.wait_for("degraded", subject="successor")
    it.wait_for_step(1)
    ports.run("scancel", "--batch", "--signal=USR2", it.wait_for("run_started")["job"])
    it.wait_for("run_ended")
    it.wait_until_over()
    typed = Typed(it.run, ports.cluster.env)
    told = {fact["name"]: fact["text"] for fact in typed.json("why")["facts"]}
    assert typed.json("status")["state"] == "dead"
    assert "and no job continues the run" in told["why"]
    assert "QOSMaxSubmitJobPerUserLimit" in told["why"]
    assert told["to do"].startswith("launch.continuation=requeue")
    assert "hpckit resume" in told["to do"]
