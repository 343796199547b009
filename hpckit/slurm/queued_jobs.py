"""Finds the jobs in Slurm's queue that carry a run, whether or not its directory records them.

A run lock is held from the start of the supervisor on. A pending job holds none, and a job that
Slurm accepted without an answer ("Socket timed out") is recorded nowhere; it is recognised by its
batch script.
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

_TIMEOUT_S = 30.0
_FORM = "%i|%T|%j|%o"
_STATES = "PENDING,CONFIGURING,RUNNING,SUSPENDED,STOPPED,REQUEUED,REQUEUE_HOLD,SPECIAL_EXIT"


@dataclass(frozen=True)
class QueuedJob:
    """A job that has not ended."""

    number: str
    """Number of the job; for a task of an array, array and task: 7_0."""
    state: str
    """Slurm's name of the state, such as PENDING."""

    def __str__(self) -> str:
        return f"{self.number} ({self.state})"


def refuse_queued(runs: Sequence[RunDir]) -> None:
    """Refuses to submit runs that are queued.

    Raises:
        SpecError: one of these runs is in the queue already, or Slurm does not answer.
    """
    if not runs:
        return
    try:
        output = _squeue()
    except QueueError as error:
        names = ", ".join(run.name for run in runs)
        what = (
            f"nothing is submitted, because it is unknown whether a job of {names} is already "
            "queued"
        )
        raise SpecError([f"Slurm does not answer: {error}; {what}"]) from error
    if found := [
        problem for run in runs if (problem := waiting_problem(run, _jobs_of(run, output)))
    ]:
        raise SpecError(found)


def queued(run: RunDir) -> list[QueuedJob]:
    """Returns this user's jobs that carry the run at this path.

    Raises:
        QueueError: Slurm does not answer; has its message.
    """
    return _jobs_of(run, _squeue())


def _jobs_of(run: RunDir, output: str) -> list[QueuedJob]:
    return of_run(run, numbers_of(run, read_events(run.events)), output)


def _squeue() -> str:
    command = ["squeue", "--me", "--noheader", "--array", f"--states={_STATES}"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("SQUEUE_")}
    try:
        done = subprocess.run(
            [*command, f"--format={_FORM}"],
            env=env,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise QueueError(f"squeue: {error}") from error
    if done.returncode:
        raise QueueError((done.stderr.strip().splitlines() or ["squeue failed"])[-1])
    return done.stdout


def of_run(run: RunDir, known: Sequence[str], text: str) -> list[QueuedJob]:
    """Parses squeue's output, one job a line, for jobs of a run.

    Args:
        known: numbers of jobs that the run directory records. A number alone is no proof, as a
            reinstalled cluster counts from 1 again.
    """
    found = []
    for line in text.splitlines():
        number, state, name, command = (*line.split("|", 3), "", "", "")[:4]
        is_ours = number in known or Path(command).parent == run.submitit
        if is_ours and is_name_of(number, name, run):
            found.append(QueuedJob(number, state))
    return found


def waiting_problem(run: RunDir, jobs: Sequence[QueuedJob]) -> str | None:
    """Returns why the run must not be started again, or None."""
    if not jobs:
        return None
    names = ", ".join(map(str, jobs))
    what = f"job {names} is" if len(jobs) == 1 else f"jobs {names} are"
    return (
        f"{run.name}: {what} in the queue already and will run it; hpckit status {run.path} "
        f"shows more; to start differently or with --fresh, run hpckit cancel {run.path} first"
    )
