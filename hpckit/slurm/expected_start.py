"""When Slurm would start a job, as far as it knows now."""

from __future__ import annotations

import re
import shutil
import subprocess

# Somebody is sitting there and waiting.
_PATIENCE_S = 10.0
_ANSWER = re.compile(r"to start at (\S+)(?: .*on nodes (\S+))?")


def start_time(script: str) -> str:
    """What `sbatch --test-only` says of a batch script, or why it says nothing; nothing is
    submitted."""
    if shutil.which("sbatch") is None:
        return "not known: there is no sbatch on this machine"
    try:
        done = subprocess.run(
            ["sbatch", "--test-only"],
            input=script,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"not known: {error}"
    said = " ".join(done.stderr.split())
    if done.returncode or (found := _ANSWER.search(said)) is None:
        return f"not known: {said or 'sbatch --test-only said nothing'}"
    return f"{found[1]}, by what Slurm knows now" + (f" ({found[2]})" if found[2] else "")
