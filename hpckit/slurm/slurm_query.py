"""Calls of Slurm's programs that submit nothing: `squeue`, `sinfo`, `scontrol`, `scancel`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from hpckit.slurm.environment import environment_for


class SlurmCallError(subprocess.CalledProcessError):
    """Raised if a program of Slurm reports an error; the message has the last line of it."""

    def __str__(self) -> str:
        lines = (self.stderr or "").strip().splitlines() or [f"exit status {self.returncode}"]
        return f"{' '.join(self.cmd)}: {lines[-1]}"


def query(
    command: Sequence[str],
    within_s: float,
    env: Mapping[str, str] = os.environ,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Returns the standard output of a call, as `run_query` makes it.

    Raises:
        SlurmCallError: the program reported an error.
        OSError, subprocess.SubprocessError: it cannot be executed, or is too slow.
    """
    done = run_query(command, within_s, env, variables)
    if done.returncode:
        raise SlurmCallError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def run_query(
    command: Sequence[str],
    within_s: float,
    env: Mapping[str, str] = os.environ,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Makes a call in an environment in which its output has the form that is parsed here.

    Args:
        within_s: time limit of the call, in seconds.
        env: the environment of this process.
        variables: further variables of the call, which win over those of `env`.

    Raises:
        OSError, subprocess.SubprocessError: the program cannot be executed, or is too slow.
    """
    return subprocess.run(
        command,
        env={**environment_for("query", env), **(variables or {})},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=within_s,
        check=False,
    )
