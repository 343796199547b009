"""What was started, as one JSON document: for scripts that go on from there."""

from __future__ import annotations

import json
from typing import Any

from hpckit.rundir.directory import RunDir


def start_record(
    run: RunDir, submission: int | None, job: str | None, **more: Any
) -> dict[str, Any]:
    """Of one run.

    Args:
        submission: its number; None: it is done, and nothing was started.
        job: Slurm's number; of a run of this machine, its process.
    """
    return {"run": run.name, "path": str(run.path), **more, "submission": submission, "job": job}


def show(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2))
