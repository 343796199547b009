"""Runs the commands by which faults are caused."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hpckit.faults.fault_plan import DrillError, ImpossibleDrillError
from hpckit.slurm.environment import environment_for

_PATIENCE_S = 120.0
_END_S = 30.0
"""Seconds in which a command has to end after the end of its standard input."""


def run_command(
    command: Sequence[str],
    called: str,
    folder: Path | None = None,
    never: int | None = None,
    longer_s: float = 0.0,
    until_eof: bool = False,
) -> str:
    """Run a command and return its standard output.

    Args:
        called: its name in errors.
        folder: its working directory; None: the present one.
        never: exit status that means that the fault can never be caused there.
        longer_s: seconds that it takes by itself, which are added to its timeout.
        until_eof: it ends what it does at the end of its standard input. That comes when this
            process ends in any way or is interrupted, of which the command gets no signal: `srun`
            would leave its step running, or end it by SIGKILL.

    Raises:
        ImpossibleDrillError: its exit status is `never`.
        DrillError: it failed, or took too long.
    """
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment_for("submission" if command[0] == "srun" else "query", os.environ),
            stdin=reading if until_eof else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=until_eof,
        )
        with process:
            try:
                output, errors = process.communicate(timeout=_PATIENCE_S + longer_s)
            except BaseException:
                os.close(writing)
                writing = -1
                _end(process, _END_S if until_eof else 0.0)
                raise
    except (OSError, subprocess.SubprocessError) as error:
        raise DrillError(f"{called}: {error}") from error
    finally:
        for descriptor in (reading, writing):
            if descriptor >= 0:
                os.close(descriptor)
    if process.returncode:
        message = errors.strip() or f"exit status {process.returncode}"
        kind = ImpossibleDrillError if process.returncode == never else DrillError
        raise kind(f"{called}: {message}")
    return output


def _end(process: subprocess.Popen[str], within_s: float) -> None:
    """Wait for the end of the process, and kill it if that takes longer."""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
