"""Estimates when Slurm would start a job."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection

from hpckit.slurm.environment import environment_for

# Short, as a person waits for the answer.
_TIMEOUT_S = 10.0
_ANSWER = re.compile(r"to start at (\S+)(?: .*on nodes (\S+))?")


def start_time(script: str, passed: Collection[str] = ()) -> str:
    """Returns the estimate of `sbatch --test-only` for a batch script, or why there is none;
    nothing is submitted.

    Args:
        passed: as in `environment_for`.
    """
    if shutil.which("sbatch") is None:
        return "unknown: sbatch is not installed on this machine"
    try:
        done = subprocess.run(
            ["sbatch", "--test-only"],
            input=script,
            env=environment_for("submission", os.environ, passed),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"
    answer = " ".join(done.stderr.split())
    if done.returncode or (found := _ANSWER.search(answer)) is None:
        return f"unknown: {answer or 'sbatch --test-only printed nothing'}"
    return f"{found[1]}, by Slurm's present estimate" + (f" ({found[2]})" if found[2] else "")
