"""Estimates when Slurm would start a job."""

from __future__ import annotations

import re
import shutil
import subprocess

# Short, as a person waits for the answer.
_TIMEOUT_S = 10.0
_ANSWER = re.compile(r"to start at (\S+)(?: .*on nodes (\S+))?")


def start_time(script: str) -> str:
    """Returns the estimate of `sbatch --test-only` for a batch script, or why there is none;
    nothing is submitted."""
    if shutil.which("sbatch") is None:
        return "unknown: sbatch is not installed on this machine"
    try:
        done = subprocess.run(
            ["sbatch", "--test-only"],
            input=script,
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
    return f"{found[1]}by Slurm's present estimate" + (f" ({found[2]})" if found[2] else "")
