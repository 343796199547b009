"""Runs the commands by which faults are caused."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hpckit.faults.fault_plan import DrillError, ImpossibleDrillError
from hpckit.slurm.environment import environment_for

_PATIENCE_S = 120.0


def run_command(
    command: Sequence[str],
    called: str,
    folder: Path | None = None,
    never: int | None = None,
    longer_s: float = 0.0,
) -> str:
    """Run a command and return its standard output.

    Args:
        called: its name in errors.
        folder: its working directory; None: the present one.
        never: exit status that means that the fault can never be caused there.
        longer_s: seconds that it takes by itself, which are added to its timeout.

    Raises:
        ImpossibleDrillError: its exit status is `never`.
        DrillError: it failed, or took too long.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment_for("submission" if command[0] == "srun" else "query", os.environ),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S + longer_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise DrillError(f"{called}: {error}") from error
    if done.returncode:
        message = done.stderr.strip() or f"exit status {done.returncode}"
        kind = ImpossibleDrillError if done.returncode == never else DrillError
        raise kind(f"{called}: {message}")
    return done.stdout
