"""Reads this user's jobs with one call of squeue, whose output is parsed strictly.

Ended jobs are included for as long as Slurm remembers them (MinJobAge, minutes).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpckit.events.schema import Event, RunStarted, SuccessorQueued, TaskQueued
from hpckit.rundir.directory import RunDir

_TIMEOUT_S = 30.0
_FIELDS = ("%i", "%T", "%S", "%e", "%l", "%D", "%P", "%N", "%E", "%r", "%j")
_NUMBER = re.compile(r"\d+(_\d+)?")
_SWEEP = re.compile(r"-sweep-\d+")  # follows the runs' name in the name of an array
_WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_ACTIVE = {
    *("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED"),
    *("RESIZING", "SIGNALING", "STAGE_OUT"),
}


class QueueError(RuntimeError):
    """Raised if Slurm does not answer, or its answer cannot be parsed."""


@dataclass(frozen=True)
class SlurmJob:
    """One job of the queue."""

    number: str
    """Number of the job; for a task of an array, array and task: 7_0."""
    state: str
    """Slurm's name of the state, such as PENDING."""
    start: float | None
    """Actual or expected start in seconds since the epoch; None: unknown."""
    end: float | None
    """When its time limit ends it, or when it ended; as `start`."""
    limit: str
    """Its time limit in Slurm's format."""
    nodes: int
    partition: str
    hosts: str
    """Its nodes in Slurm's short form; empty before it starts."""
    dependency: str
    reason: str
    """Slurm's reason code, such as Resources."""
    name: str

    @property
    def is_waiting(self) -> bool:
        """Whether the job has not started."""
        return self.state in _WAITING

    @property
    def is_active(self) -> bool:
        """Whether the job has nodes."""
        return self.state in _ACTIVE

    @property
    def is_over(self) -> bool:
        return not (self.is_waiting or self.is_active)


def queue() -> list[SlurmJob]:
    """Returns this user's jobs.

    Raises:
        QueueError: there is no Slurm here, its controller is out of reach, or squeue's answer
            cannot be parsed.
    """
    form = f"--format={'|'.join(_FIELDS)}"
    command = ["squeue", "--me", "--noheader", "--states=all", "--array", form]
    env = {k: v for k, v in os.environ.items() if not k.startswith("SQUEUE_")}
    env["SLURM_TIME_FORMAT"] = "%s"  # seconds since the epoch, independent of the time zone
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise QueueError("squeue is not installed on this machine") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise QueueError(f"squeue: {error}") from error
    if done.returncode:
        errors = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise QueueError(errors[-1])
    return parse_queue(done.stdout)


def parse_queue(text: str) -> list[SlurmJob]:
    """Parses squeue's output, one job a line.

    Raises:
        QueueError: a line has another form.
    """
    return [_parse(line) for line in text.splitlines() if line.strip()]


def _parse(line: str) -> SlurmJob:
    fields = line.split("|", len(_FIELDS) - 1)
    try:
        number, state, start, end, limit, nodes, partition, hosts, dependency, reason, name = fields
        if not _NUMBER.fullmatch(number):
            raise ValueError(number)
        return SlurmJob(
            number=number,
            state=state,
            start=_time(start),
            end=_time(end),
            limit=limit,
            nodes=int(nodes),
            partition=partition,
            hosts=hosts,
            dependency="" if dependency == "(null)" else dependency,
            reason=reason,
            name=name,
        )
    except ValueError:
        raise QueueError(f"squeue: cannot parse this line: {line!r}") from None


def _time(text: str) -> float | None:
    return None if text in ("N/A", "Unknown", "NONE") else float(int(text))


def numbers_of(run: RunDir, events: Iterable[Event]) -> list[str]:
    """Returns the numbers of all jobs that the run directory records, in ascending order."""
    found = {str(number) for number in run.job_numbers()}
    named = (e for e in events if isinstance(e, TaskQueued | RunStarted | SuccessorQueued))
    found |= {str(event.job) for event in named if event.job is not None}
    return sorted(found, key=_order)


def jobs_of(run: RunDir, numbers: Sequence[str], jobs: Iterable[SlurmJob]) -> tuple[SlurmJob, ...]:
    """Returns the run's jobs among `jobs`, in ascending order. A number alone is no proof: a
    reinstalled cluster counts from 1 again."""
    mine = [job for job in jobs if job.number in numbers and is_name_of(job.number, job.name, run)]
    return tuple(sorted(mine, key=lambda job: _order(job.number)))


def is_name_of(number: str, name: str, run: RunDir) -> bool:
    """Returns whether a job of the run with this number may have this name."""
    if "_" not in number:
        return name == run.name
    title = run.name.rpartition("-")[0]
    return name.startswith(title) and bool(_SWEEP.fullmatch(name.removeprefix(title)))


def _order(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in number.split("_"))
