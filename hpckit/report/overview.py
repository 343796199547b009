"""A run as it is now: all that its directory, its lock and Slurm's queue tell, gathered once."""

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
from hpckit.report.progress import RunProgress, build_progress
from hpckit.report.run_state import RunState, decide, is_current
from hpckit.report.successor_job import missing_successor_reason
from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import LockOwner, holder
from hpckit.rundir.supervisor_process import starting_process
from hpckit.slurm.node_exclusion import ExcludableNode, excludable_nodes
from hpckit.slurm.squeue import QueueError, SlurmJob, jobs_of, numbers_of, queue
from hpckit.system.atomic_files import read_json


@dataclass(frozen=True)
class Overview:
    """What there is to know of a run."""

    run: RunDir
    spec: RunSpec | None
    """Of the newest submission; None: it cannot be read."""
    state: RunState
    verdict: dict[str, Any] | None
    """The last one; None where there is none about the supervisor that came last."""
    progress: RunProgress
    numbers: tuple[str, ...]
    """Of all its jobs of Slurm."""
    jobs: tuple[SlurmJob, ...]
    """Those that Slurm knows of."""
    owner: LockOwner | None
    """Who holds the lock."""
    problem: str | None
    """Why this is not all: Slurm is out of reach, or the spec is damaged."""
    bad: tuple[ExcludableNode, ...] = ()
    """Nodes that it does without."""

    @property
    def is_slurm(self) -> bool:
        return self.spec is not None and self.spec.cluster.kind == "slurm"

    @property
    def word(self) -> str:
        """The state in one word: of an ended run, its verdict."""
        return str(self.verdict["kind"]) if self.is_ended and self.verdict else str(self.state)

    @property
    def is_ended(self) -> bool:
        return self.state is RunState.ENDED

    @property
    def is_alive(self) -> bool:
        """Something of it is there, or comes by itself."""
        return self.state not in (RunState.ENDED, RunState.FAILED, RunState.DEAD)

    @property
    def current_jobs(self) -> tuple[SlurmJob, ...]:
        """Those that are not over."""
        return tuple(job for job in self.jobs if not job.is_over)

    @property
    def waiting_job(self) -> SlurmJob | None:
        """The one that has not begun: the first, or the successor."""
        return next((job for job in reversed(self.jobs) if job.is_waiting), None)

    @property
    def no_successor(self) -> str | None:
        """Why no job is queued to go on after the one under way; see `missing_successor_reason`."""
        has_begun = self.state in (RunState.RUNNING, RunState.STARTING)
        return missing_successor_reason(self.spec, self.progress, self.jobs, has_begun)

    @property
    def ended_job(self) -> SlurmJob | None:
        """The one that began last, if it is over and Slurm remembers it."""
        mine = (job for job in self.jobs if job.number == self.progress.job)
        return next((job for job in mine if job.is_over), None)

    def record(self) -> dict[str, Any]:
        """For programs."""
        p, spec = self.progress, self.spec
        return {
            "run": self.run.name,
            "path": str(self.run.path),
            "cluster": spec.cluster.kind if spec else None,
            "state": str(self.state),
            "verdict": self.verdict,
            "step": p.step,
            "steps": p.steps,
            "step_time": p.step_time,
            "step_s": p.step_s,
            "tokens_per_s": p.tokens_per_s,
            "data_wait": p.data_wait,
            "ettr": p.ettr,
            "loss": p.loss,
            "saved_step": p.saved_step,
            "saved_time": p.saved_time,
            "generation": p.generation,
            "nodes": p.nodes,
            "ranks": p.ranks,
            "hosts": list(p.hosts),
            "interruptions": p.interruptions,
            "jobs": [asdict(job) for job in self.jobs],
            "successor": p.successor,
            "no_successor": self.no_successor,
            "failure": p.failure,
            "degraded": p.degraded,
            "stragglers": list(p.stragglers),
            "owner": asdict(self.owner) if self.owner else None,
            "bad_nodes": [{**asdict(one), "admin": one.for_admin} for one in self.bad],
            "problem": self.problem,
        }


class Queue:
    """Slurm's queue, asked once, and only if a run is one of Slurm's."""

    def __init__(self) -> None:
        self._jobs: list[SlurmJob] | None = None
        self._error: str | None = None

    def jobs(self) -> list[SlurmJob] | None:
        """None: out of reach, see `error`."""
        if self._jobs is None and self._error is None:
            try:
                self._jobs = queue()
            except QueueError as error:
                self._error = str(error)
        return self._jobs

    @property
    def error(self) -> str | None:
        return self._error


def look(run: RunDir, slurm: Queue, events: Sequence[Event] | None = None) -> Overview:
    """The run as it is now.

    Args:
        events: of the run, if they were read already.

    Raises:
        OSError: its directory cannot be read.
    """
    spec, problem = _spec(run)
    verdict, damage = read_verdict(run)
    events = read_valid_events(run).events if events is None else events
    progress = build_progress(events)
    owner = holder(run.lock)
    numbers: tuple[str, ...] = ()
    jobs: tuple[SlurmJob, ...] | None = ()
    is_starting = False
    if spec is not None and spec.cluster.kind == "slurm":
        numbers = tuple(numbers_of(run, events))
        found = slurm.jobs()
        jobs = None if found is None else jobs_of(run, numbers, found)
        problem = f"Slurm is out of reach: {slurm.error}" if jobs is None else problem
    else:
        process = starting_process(run)
        since = float(verdict.get("time", 0.0)) if verdict and progress.ended is not None else 0.0
        is_starting = process is not None and process.create_time() > since
    return Overview(
        run=run,
        spec=spec,
        state=decide(verdict, progress, owner is not None, is_starting, jobs),
        verdict=verdict if is_current(verdict, progress) else None,
        progress=progress,
        numbers=numbers,
        jobs=jobs or (),
        owner=owner,
        problem=problem or damage,
        bad=excludable_nodes(events, time.time()),
    )


def runs_below(root: Path) -> Iterator[RunDir]:
    """The run directories in folder `root`, by name; none where it does not exist."""
    if root.is_dir():
        yield from (RunDir(p) for p in sorted(root.iterdir()) if (p / "submissions").is_dir())


def read_verdict(run: RunDir) -> tuple[dict[str, Any] | None, str | None]:
    """The newest verdict, and why there is none where there should be one."""
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
        return None, "it holds no submission"
    try:
        return read_spec(run.spec(numbers[-1])), None
    except SpecError as error:
        return None, error.violations[0]
    except OSError as error:
        return None, str(error)
