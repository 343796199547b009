"""The jobs of Slurm's queue that carry a run, known to its directory or not.

The lock of a run is held from its supervisor's beginning on. A job that waits holds none, and one
that Slurm has taken without saying so ("Socket timed out") is known to nobody: its batch script
tells.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpckit.config.spec_parser import SpecError
from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from hpckit.slurm.squeue import QueueError, is_name_of, numbers_of

_PATIENCE_S = 30.0
_FORM = "%i|%T|%j|%o"
_STATES = "PENDING,CONFIGURING,RUNNING,SUSPENDED,STOPPED,REQUEUED,REQUEUE_HOLD,SPECIAL_EXIT"


@dataclass(frozen=True)
class QueuedJob:
    """A job that has not ended."""

    number: str
    """Of a task of an array, those of both: 7_0."""
    state: str
    """In Slurm's words, as PENDING."""

    def __str__(self) -> str:
        return f"{self.number} ({self.state})"


def refuse_queued(runs: Sequence[RunDir]) -> None:
    """Raises:
    SpecError: one of these runs is in the queue already, or Slurm does not tell.
    """
    if not runs:
        return
    try:
        told = _squeue()
    except QueueError as error:
        names = ", ".join(run.name for run in runs)
        what = f"whether a job of {names} waits already is not known, so none is submitted"
        raise SpecError([f"Slurm is out of reach: {error}; {what}"]) from error
    if found := [said for run in runs if (said := waiting_problem(run, _of(run, told)))]:
        raise SpecError(found)


def queued(run: RunDir) -> list[QueuedJob]:
    """Those of this user that carry the run at this path.

    Raises:
        QueueError: Slurm does not answer; says what it said.
    """
    return _of(run, _squeue())


def _of(run: RunDir, told: str) -> list[QueuedJob]:
    return of_run(run, numbers_of(run, read_events(run.events)), told)


def _squeue() -> str:
    command = ["squeue", "--me", "--noheader", "--array", f"--states={_STATES}"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("SQUEUE_")}
    try:
        done = subprocess.run(
            [*command, f"--format={_FORM}"],
            env=env,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise QueueError(f"squeue: {error}") from error
    if done.returncode:
        raise QueueError((done.stderr.strip().splitlines() or ["squeue failed"])[-1])
    return done.stdout


def of_run(run: RunDir, known: Sequence[str], text: str) -> list[QueuedJob]:
    """Of what squeue tells, one job a line.

    Args:
        known: numbers of jobs that the run's directory names. Numbers alone are no proof, as a
            cluster that was set up anew counts from 1 again.
    """
    found = []
    for line in text.splitlines():
        number, state, name, command = (*line.split("|", 3), "", "", "")[:4]
        is_ours = number in known or Path(command).parent == run.submitit
        if is_ours and is_name_of(number, name, run):
            found.append(QueuedJob(number, state))
    return found


def waiting_problem(run: RunDir, jobs: Sequence[QueuedJob]) -> str | None:
    """Why the run is not to be started once more; None: nothing is in the way."""
    if not jobs:
        return None
    names = ", ".join(map(str, jobs))
    what = f"job {names} is" if len(jobs) == 1 else f"jobs {names} are"
    return (
        f"{run.name}: {what} in the queue already, and will carry it; hpckit status {run.path} "
        f"tells more; to start otherwise or with --fresh, first hpckit cancel {run.path}"
    )
