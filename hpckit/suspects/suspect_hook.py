"""Reports a suspect to the site's own tooling: runs a command of the config with JSON as input."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict

from hpckit.slurm.node_exclusion import drain_line
from hpckit.suspects.suspect_record import SuspectRecord

TIMEOUT_S = 60.0


def run_hook(command: Sequence[str], record: SuspectRecord, cluster: str) -> str | None:
    """Executes the command without a shell, and returns why it failed, or None.

    Its standard input is a JSON object with the fields of `SuspectRecord`, `cluster`, and `admin`,
    the command that drains the node.
    """
    document = {
        **asdict(record),
        "cluster": cluster,
        "admin": drain_line(record.node, record.reason),
    }
    try:
        done = subprocess.run(
            list(command),
            input=json.dumps(document) + "\n",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if not done.returncode:
        return None
    lines = (done.stderr or done.stdout).strip().splitlines()
    return f"exit status {done.returncode}" + (f": {lines[-1][:200]}" if lines else "")
