"""Reads this user's jobs with one call of squeue.

Ended jobs are included for as long as Slurm remembers them (MinJobAge, minutes). The queue has jobs
of other projects, too, of any form: parts of heterogeneous jobs (41+1), ranges of an array
(41_[0-9:2%3]), names with line breaks. What cannot be parsed is not a job of a run and is left out,
and a field that cannot be parsed is unknown.
"""

from __future__ import annotations

import re
import secrets
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hpckit.events.schema import Event, RunStarted, SuccessorQueued, TaskQueued
from hpckit.rundir.directory import RunDir
from hpckit.slurm.job_ownership import is_job_of_run
from hpckit.slurm.slurm_query import run_query

_TIMEOUT_S = 30.0
# Fields of a fixed form come first, then those in which users write what they like.
_FIXED = ("%i", "%T", "%S", "%e", "%l", "%D", "%P", "%N", "%E", "%r")
_FREE = ("%j", "%k", "%o")
_NUMBER = re.compile(r"\d+(?:_\d+|\+\d+|_\[[^\]]*\]?)?")
_TASKS = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_WAITING = {
    *("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
    "EXPEDITING",  # requeued before all other jobs (25.11)
}
_ACTIVE = {
    *("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED"),
    *("RESIZING", "SIGNALING", "STAGE_OUT", "POWER_UP_NODE", "UPDATE_DB"),
}
_OVER = {
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"),
    *("DEADLINE", "OUT_OF_MEMORY", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"),
}


class QueueError(RuntimeError):
    """Raised if Slurm does not answer."""


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
    """Number of its nodes; 0: unknown."""
    partition: str
    hosts: str
    """Its nodes in Slurm's short form; empty before it starts."""
    dependency: str
    reason: str
    """Slurm's reason code, such as Resources."""
    name: str
    comment: str = ""
    command: str = ""
    """Path of its batch script and the script's arguments."""

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
        return self.state in _OVER

    @property
    def is_unknown(self) -> bool:
        """Whether its state is none that this release knows. Such a job may run."""
        return not (self.is_waiting or self.is_active or self.is_over)


def queue() -> list[SlurmJob]:
    """Returns this user's jobs.

    Raises:
        QueueError: there is no Slurm here, or its controller is out of reach.
    """
    mark = f"@{secrets.token_hex(4)}"  # occurs in no name that a user has given
    form = f"--format={mark}#{f'{mark}.'.join((*_FIXED, *_FREE))}"
    command = ["squeue", "--me", "--noheader", "--states=all", "--array", form]
    variables = {
        "SLURM_TIME_FORMAT": "%s",  # seconds since the epoch, independent of the time zone
        "SLURM_BITSTR_LEN": "0",  # lists of an array's tasks are not cut off
    }
    try:
        done = run_query(command, _TIMEOUT_S, variables=variables)
    except FileNotFoundError:
        raise QueueError("squeue is not installed on this machine") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise QueueError(f"squeue: {error}") from error
    if done.returncode:
        errors = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise QueueError(errors[-1])
    return parse_queue(done.stdout, mark)


def parse_queue(text: str, mark: str = "") -> list[SlurmJob]:
    """Parses squeue's output. What is not a job is left out.

    Args:
        mark: a text that no field has. With "#" after it, it begins a job, and with "." it
            separates fields, as line breaks and any other character may be in a name. Empty: a job
            is a line, and "|" separates its fields.
    """
    records = text.split(f"{mark}#")[1:] if mark else text.splitlines()
    jobs = (_parse(record.removesuffix("\n"), f"{mark}." if mark else "|") for record in records)
    return [job for job in jobs if job is not None]


def _parse(record: str, separator: str) -> SlurmJob | None:
    fields = record.split(separator, len(_FIXED) + (len(_FREE) - 1 if separator != "|" else 0))
    if len(fields) <= len(_FIXED) or not _NUMBER.fullmatch(fields[0]):
        return None
    number, state, start, end, limit, nodes, partition, hosts, dependency, reason = map(
        str.strip, fields[: len(_FIXED)]
    )
    name, comment, command = (*fields[len(_FIXED) :], "", "")[: len(_FREE)]
    return SlurmJob(
        number=number,
        state=state.partition(" ")[0].upper(),  # CANCELLED by 1000
        start=_time(start),
        end=_time(end),
        limit=limit,
        nodes=_count(nodes),
        partition=partition,
        hosts=_given(hosts),
        dependency=_given(dependency),
        reason=reason,
        name=name,
        comment=_given(comment),
        command=_given(command),
    )


def _given(text: str) -> str:
    return "" if text in ("(null)", "N/A", "NOT_SET") else text


def _time(text: str) -> float | None:
    """Parses seconds since the epoch; None: not set, or in another form."""
    return float(text) if text.isascii() and text.isdigit() else None


def _count(text: str) -> int:
    """Parses a number of nodes, of which "2-4" is a range."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0


def numbers_of(run: RunDir, events: Iterable[Event]) -> list[str]:
    """Returns the numbers of all jobs that the run directory records, in ascending order."""
    found = {str(number) for number in run.job_numbers()}
    named = (e for e in events if isinstance(e, TaskQueued | RunStarted | SuccessorQueued))
    found |= {str(event.job) for event in named if event.job is not None}
    return sorted(found, key=_order)


def jobs_of(run: RunDir, numbers: Sequence[str], jobs: Iterable[SlurmJob]) -> tuple[SlurmJob, ...]:
    """Returns the run's jobs among `jobs`, in ascending order.

    Args:
        numbers: numbers of jobs that the run directory records. A job that Slurm accepted without
            an answer is recorded nowhere.
    """
    mine = []
    for job in jobs:
        known = [number for number in numbers if includes(job.number, number)]
        for number in known or [job.number]:
            is_mine = is_job_of_run(
                run, number, job.name, job.comment, job.command, is_recorded=bool(known)
            )
            # an earlier run of the same path, which was moved aside, may have ended jobs
            if is_mine and (known or not job.is_over):
                mine.append(replace(job, number=number))
    return tuple(sorted(mine, key=lambda job: _order(job.number)))


def includes(shown: str, number: str) -> bool:
    """Returns whether the job that squeue shows under the number `shown` is that of `number`: that
    one, the first part of a heterogeneous job, or an array of which that one is a task."""
    if shown == number or shown == f"{number}+0":
        return True
    array, _, tasks = shown.partition("_[")
    mine, _, task = number.partition("_")
    return bool(tasks) and array == mine and task.isdigit() and _is_task_of(int(task), tasks)


def _is_task_of(task: int, tasks: str) -> bool:
    """Returns whether a list such as "0-9:2,12%3]" has the task. One that is cut off ("0,2,...")
    may have any that is above the last one."""
    words = tasks.rstrip("]").partition("%")[0].split(",")
    last = -1
    for word in words:
        if not (found := _TASKS.fullmatch(word)):
            return task > last
        first, step = int(found[1]), int(found[3] or 1)
        last = int(found[2] or first)
        if task in range(first, last + 1, max(step, 1)):
            return True
    return False


def _order(number: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", number))
