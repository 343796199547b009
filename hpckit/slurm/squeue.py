"""What Slurm's queue says of this user's jobs: one call of squeue, parsed strictly.

Jobs that have ended are in it too, for as long as Slurm remembers them (MinJobAge, minutes).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpckit.events.event_log import Event
from hpckit.rundir.directory import RunDir

_PATIENCE_S = 30.0
_FIELDS = ("%i", "%T", "%S", "%e", "%l", "%D", "%P", "%N", "%E", "%r", "%j")
_NUMBER = re.compile(r"\d+(_\d+)?")
_SWEEP = re.compile(r"-sweep-\d+")  # after the name of the runs: the name of an array
_WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_ACTIVE = {
    *("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED"),
    *("RESIZING", "SIGNALING", "STAGE_OUT"),
}


class QueueError(RuntimeError):
    """Slurm does not answer, or in a way that is not understood."""


@dataclass(frozen=True)
class SlurmJob:
    """One job of the queue."""

    number: str
    """Of a task of an array, those of both: 7_0."""
    state: str
    """In Slurm's words, as PENDING."""
    start: float | None
    """When it began, or is expected to; seconds since the epoch. None: Slurm does not say."""
    end: float | None
    """When its time limit ends it, or when it ended; as `start`."""
    limit: str
    """Its time limit, in Slurm's format."""
    nodes: int
    partition: str
    hosts: str
    """Its nodes, in Slurm's short form; empty before it begins."""
    dependency: str
    reason: str
    """In Slurm's words, as Resources."""
    name: str

    @property
    def is_waiting(self) -> bool:
        """It has not begun."""
        return self.state in _WAITING

    @property
    def is_active(self) -> bool:
        """It has nodes."""
        return self.state in _ACTIVE

    @property
    def is_over(self) -> bool:
        return not (self.is_waiting or self.is_active)


def queue() -> list[SlurmJob]:
    """This user's jobs.

    Raises:
        QueueError: there is no Slurm here, its controller is out of reach, or squeue's answer is
            not understood.
    """
    form = f"--format={'|'.join(_FIELDS)}"
    command = ["squeue", "--me", "--noheader", "--states=all", "--array", form]
    env = {k: v for k, v in os.environ.items() if not k.startswith("SQUEUE_")}
    env["SLURM_TIME_FORMAT"] = "%s"  # seconds since the epoch, in no time zone
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except FileNotFoundError:
        raise QueueError("there is no squeue on this machine") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise QueueError(f"squeue: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise QueueError(said[-1])
    return parse_queue(done.stdout)


def parse_queue(text: str) -> list[SlurmJob]:
    """The jobs that squeue tells of, one a line.

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
        raise QueueError(f"squeue: this line is not understood: {line!r}") from None


def _time(text: str) -> float | None:
    return None if text in ("N/A", "Unknown", "NONE") else float(int(text))


def numbers_of(run: RunDir, events: Iterable[Event]) -> list[str]:
    """Numbers of all jobs that the run's directory names, ascending."""
    found = {str(number) for number in run.job_numbers()}
    kinds = ("task_queued", "run_started", "successor_queued")
    found |= {str(e["job"]) for e in events if e.kind in kinds and e.get("job") is not None}
    return sorted(found, key=_order)


def jobs_of(run: RunDir, numbers: Sequence[str], jobs: Iterable[SlurmJob]) -> tuple[SlurmJob, ...]:
    """Those of `jobs` that are the run's, ascending. A number alone is no proof: a cluster that was
    set up anew counts from 1 again."""
    mine = [job for job in jobs if job.number in numbers and is_name_of(job.number, job.name, run)]
    return tuple(sorted(mine, key=lambda job: _order(job.number)))


def is_name_of(number: str, name: str, run: RunDir) -> bool:
    """Whether a job of the run, with this number, has such a name."""
    if "_" not in number:
        return name == run.name
    title = run.name.rpartition("-")[0]
    return name.startswith(title) and bool(_SWEEP.fullmatch(name.removeprefix(title)))


def _order(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in number.split("_"))
