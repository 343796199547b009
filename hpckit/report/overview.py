"""The present state of a run, gathered once from its directory, its run lock and Slurm's queue."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import SpecError, read_spec
from hpckit.events.event_log import Event
from hpckit.events.event_validation import read_valid_events
from hpckit.report.evaluation.evaluation_records import EvaluationRecord, known_and_waiting
from hpckit.report.progress import RunProgress, build_progress
from hpckit.report.run_state import RunState, decide_state, is_current
from hpckit.report.straggler_summary import cost_record
from hpckit.rundir.directory import RunDir
from hpckit.rundir.fork_record import ForkRecord, read_fork
from hpckit.rundir.lock import LockOwner, holder
from hpckit.rundir.supervisor_process import starting_since
from hpckit.slurm.node_exclusion import ExcludableNode, excludable_nodes
from hpckit.slurm.pending_reasons import explain
from hpckit.slurm.squeue import QueueError, SlurmJob, jobs_of, numbers_of, queue
from hpckit.system.atomic_files import read_json
from hpckit.system.os_errors import describe_error


@dataclass(frozen=True)
class Overview:
    """The present state of a run."""

    run: RunDir
    spec: RunSpec | None
    """The spec of the newest submission; None: it cannot be read."""
    state: RunState
    verdict: dict[str, Any] | None
    """The newest verdict; None if there is none about the newest supervisor."""
    progress: RunProgress
    numbers: tuple[str, ...]
    """Slurm job ids of the run, of all its jobs."""
    jobs: tuple[SlurmJob, ...]
    """The jobs that Slurm knows of."""
    owner: LockOwner | None
    """The holder of the run lock."""
    problem: str | None
    """Why the overview is incomplete: Slurm does not answer, or the spec is damaged."""
    bad: tuple[ExcludableNode, ...] = ()
    """The excluded nodes of the run."""
    same_name_jobs: tuple[SlurmJob, ...] = ()
    """Jobs of the user that are not over and have the name of a job of the run, without being
    one."""
    fork: ForkRecord | None = None
    """Where the run was forked from."""
    evaluations: tuple[EvaluationRecord, ...] = ()
    """The evaluations of its checkpoints, by step."""
    has_no_answer: bool = False
    """Whether `problem` is that Slurm does not answer."""

    @property
    def is_slurm(self) -> bool:
        return self.spec is not None and self.spec.cluster.kind == "slurm"

    @property
    def word(self) -> str:
        """Return the state in one word; for an ended run, its verdict."""
        return str(self.verdict["kind"]) if self.is_ended and self.verdict else str(self.state)

    @property
    def condition(self) -> str:
        """Return the state as the rest of a sentence about the run: "is running", "is done", "has
        ended (crash)"."""
        is_participle = not self.is_ended or self.word in ("done", "stopped", "preempted")
        return f"is {self.word}" if is_participle else f"has ended ({self.word})"

    @property
    def is_ended(self) -> bool:
        return self.state is RunState.ENDED

    @property
    def is_alive(self) -> bool:
        """Whether anything of the run is active, or will start automatically."""
        return self.state not in (RunState.ENDED, RunState.FAILED, RunState.DEAD)

    @property
    def current_jobs(self) -> tuple[SlurmJob, ...]:
        """Return the jobs that are not over."""
        return tuple(job for job in self.jobs if not job.is_over)

    @property
    def hang(self) -> str | None:
        """What the newest hang came from, while it matters: of a run that goes on, or has ended
        without having reached its end."""
        is_well = self.is_ended and self.word in ("done", "stopped")
        return None if is_well else self.progress.hang

    @property
    def waiting_job(self) -> SlurmJob | None:
        """Return the job that has not begun: the first, or the successor job."""
        return next((job for job in reversed(self.jobs) if job.is_waiting), None)

    @property
    def no_successor(self) -> str | None:
        """Return why no successor job is queued; see `missing_successor_reason`."""
        has_begun = self.state in (RunState.RUNNING, RunState.STARTING)
        return missing_successor_reason(self.spec, self.progress, self.jobs, has_begun)

    @property
    def blocked(self) -> tuple[str, str] | None:
        """Return what keeps the waiting job from starting before somebody changes something, and
        what to do: by Slurm's reason now, else by what the supervisor found while it waits for the
        job that runs. None: nothing is known to."""
        job, blocked = self.waiting_job, self.progress.blocked
        if job is None:
            return None
        reason = explain(job.reason)
        if reason.is_lasting:
            return f"{job.reason}: {reason.meaning}", reason.advice.replace("JOB", job.number)
        has_begun = self.state in (RunState.RUNNING, RunState.STARTING)
        if blocked is not None and blocked.job == job.number and has_begun:
            return blocked.reason, blocked.advice
        return None

    @property
    def ended_job(self) -> SlurmJob | None:
        """Return the job that began last, if it is over and Slurm remembers it."""
        mine = (job for job in self.jobs if job.number == self.progress.job)
        return next((job for job in mine if job.is_over), None)

    @property
    def is_program(self) -> bool:
        """Whether it runs a program of the user's as it is."""
        return self.spec is not None and self.spec.command is not None

    @property
    def is_silent(self) -> bool:
        """Whether it is of a program that has reported no steps."""
        return self.is_program and not self.progress.step and self.progress.step_time is None

    @property
    def later_job(self) -> SlurmJob | None:
        """Return the newest job, if it is over without having begun a supervisor."""
        last = self.jobs[-1] if self.jobs else None
        return last if last and last.is_over and last.number != self.progress.job else None

    def record(self) -> dict[str, Any]:
        """Return the overview as JSON values."""
        p, spec = self.progress, self.spec
        return {
            "run": self.run.name,
            "path": str(self.run.path),
            "cluster": spec.cluster.kind if spec else None,
            "forked_from": asdict(self.fork) if self.fork else None,
            "state": str(self.state),
            "verdict": self.verdict,
            "step": p.step,
            "steps": p.steps,
            "step_time": p.step_time,
            "step_s": p.step_s,
            "tokens_per_s": p.tokens_per_s,
            "samples_per_s": p.samples_per_s,
            "data_wait": p.data_wait,
            "ettr": p.ettr,
            "training_share": p.training_share,
            "loss": p.loss,
            "sources": p.sources,
            "saved_step": p.saved_step,
            "saved_time": p.saved_time,
            "certified_step": p.certified_step,
            "wrong": p.wrong,
            "skipped_updates": p.skipped_updates,
            "generation": p.generation,
            "nodes": p.nodes,
            "ranks": p.ranks,
            "hosts": list(p.hosts),
            "interruptions": p.interruptions,
            "last_interruption": asdict(p.last_interruption) if p.last_interruption else None,
            "jobs": [asdict(job) for job in self.jobs],
            "successor": p.successor,
            "no_successor": self.no_successor,
            "successor_blocked": self.blocked[0] if self.blocked else None,
            "refused": p.refused,
            "failure": p.failure,
            "degraded": p.degraded,
            "stragglers": list(p.stragglers),
            "straggler_cost": cost_record(p.straggler_cost) if p.straggler_cost else None,
            "hang": p.hang,
            "health_problems": list(p.health_problems),
            "owner": asdict(self.owner) if self.owner else None,
            "bad_nodes": [{**asdict(one), "admin": one.for_admin} for one in self.bad],
            "evaluations": [one.record() for one in self.evaluations],
            "problem": self.problem,
        }


class Queue:
    """Slurm's queue, which is read once, and only if a run is one of Slurm's."""

    def __init__(self) -> None:
        self._jobs: list[SlurmJob] | None = None
        self._error: str | None = None

    def jobs(self) -> list[SlurmJob] | None:
        """Return the jobs of the run. None: Slurm does not answer, see `error`."""
        if self._jobs is None and self._error is None:
            try:
                self._jobs = queue()
            except QueueError as error:
                self._error = str(error)
        return self._jobs

    @property
    def error(self) -> str | None:
        return self._error


def read_overview(run: RunDir, slurm: Queue, events: Sequence[Event] | None = None) -> Overview:
    """Gather the present state of the run.

    Whether a supervisor is there is looked at before its verdict is read: one that is gone has
    written it.

    Args:
        events: the run's events, if they were read already.

    Raises:
        OSError: its directory cannot be read.
    """
    spec, problem = _spec(run)
    owner = holder(run.lock)
    is_slurm = spec is not None and spec.cluster.kind == "slurm"
    started = None if is_slurm else starting_since(run)
    verdict, damage = read_verdict(run)
    events = read_valid_events(run).events if events is None else events
    progress = build_progress(events)
    numbers: tuple[str, ...] = ()
    jobs: tuple[SlurmJob, ...] | None = ()
    found: Sequence[SlurmJob] | None = ()
    is_starting = False
    if is_slurm:
        numbers = tuple(numbers_of(run, events))
        found = slurm.jobs()
        jobs = None if found is None else jobs_of(run, numbers, found)
    else:
        since = float(verdict.get("time", 0.0)) if verdict and progress.ended is not None else 0.0
        is_starting = started is not None and started > since
    current = verdict if is_current(verdict, progress) else None
    state = decide_state(verdict, progress, owner is not None, is_starting, jobs)
    has_done_all = state is RunState.ENDED and current is not None and current["kind"] == "done"
    has_no_answer = jobs is None and not has_done_all
    if has_no_answer:
        problem = f"Slurm does not answer: {slurm.error}"
    return Overview(
        run=run,
        spec=spec,
        state=state,
        verdict=current,
        progress=progress,
        numbers=numbers,
        jobs=jobs or (),
        owner=owner,
        problem=problem or damage,
        bad=excludable_nodes(events, time.time()),
        same_name_jobs=_same_name_jobs(jobs or (), found or ()),
        fork=read_fork(run),
        evaluations=tuple(known_and_waiting(run, events, spec)),
        has_no_answer=has_no_answer,
    )


def _same_name_jobs(mine: Sequence[SlurmJob], jobs: Sequence[SlurmJob]) -> tuple[SlurmJob, ...]:
    names, numbers = {job.name for job in mine}, {job.number for job in mine}
    others = (job for job in jobs if job.name in names and job.number not in numbers)
    return tuple(job for job in others if not job.is_over)


def runs_below(root: Path) -> Iterator[RunDir]:
    """Return the run directories in folder `root`, by name; empty if it does not exist. Those of
    other users that this one may not look into are left out."""
    if root.is_dir():
        yield from (RunDir(path) for path in sorted(root.iterdir()) if is_run(path))


def is_run(path: Path) -> bool:
    """Return whether there is a run directory at `path` that this user may look into."""
    try:
        return (path / "submissions").is_dir()
    except PermissionError:
        return False


def read_verdict(run: RunDir) -> tuple[dict[str, Any] | None, str | None]:
    """Return the newest verdict, and why there is none if there should be one."""
    found = read_json(run.verdict)
    is_sound = (
        isinstance(found, dict)
        and isinstance(found.get("kind"), str)
        and isinstance(found.get("time", 0.0), int | float)
        and isinstance(found.get("error"), dict | None)
        and (not found.get("error") or isinstance(found.get("submission"), int))
    )
    if is_sound:
        return found, None
    return None, f"{run.verdict} is damaged" if run.verdict.exists() else None


def _spec(run: RunDir) -> tuple[RunSpec | None, str | None]:
    numbers = run.submission_numbers()
    if not numbers:
        return None, "it does not contain a submission"
    try:
        return read_spec(run.spec(numbers[-1])), None
    except SpecError as error:
        return None, error.violations[0]
    except OSError as error:
        return None, describe_error(error)


def missing_successor_reason(
    spec: RunSpec | None, progress: RunProgress, jobs: Sequence[SlurmJob], is_under_way: bool
) -> str | None:
    """Return why no job is queued that would continue when the present one has to leave; None: one
    is, the job itself will be requeued, or the run has no job under way.

    Args:
        jobs: of the run, by Slurm's queue; empty: Slurm does not answer.
    """
    if spec is None or spec.cluster.kind != "slurm" or not is_under_way or progress.job is None:
        return None
    if spec.launch.continuation == "none":
        return "launch.continuation=none"
    if progress.no_successor is not None:
        return progress.no_successor
    if spec.launch.is_requeued or any(job.is_waiting for job in jobs):
        return None
    if progress.successor is None:
        return "its supervisor has not reported a successor job yet"
    if jobs:
        return (
            f"job {progress.successor}, which was to continue the run, is no longer in Slurm's "
            "queue"
        )
    return None
