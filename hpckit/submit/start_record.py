"""The record of what was started, as a JSON document for scripts."""

from __future__ import annotations

import json
from typing import Any

from hpckit.rundir.directory import RunDir


def start_record(
    run: RunDir, submission: int | None, job: str | None, **more: Any
) -> dict[str, Any]:
    """Returns the record of one run.

    Args:
        submission: the number of the submission. None: the run is done, and nothing was started.
        job: Slurm's number of the job; for a run on this machine, its process id.
    """
    return {"run": run.name, "path": str(run.path), **more, "submission": submission, "job": job}


def show(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2))
