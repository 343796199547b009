"""Ends a run whose jobs give no new checkpoint, for whatever reason: each preemption and each time
limit lets another job follow, which may go on for ever.

The decisions are pure functions of the run's events.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from checkpointing.events import CheckpointCommitted
from hpckit.agent.verdict_record import Verdict, VerdictKind
from hpckit.config.spec import RetrySpec, RunSpec
from hpckit.events.end_reasons import INTERRUPTED
from hpckit.events.event_log import Event, read_events
from hpckit.events.schema import (
    CheckpointReported,
    Degraded,
    DegradedSubject,
    GenerationEnded,
    GenerationStarted,
    RunStarted,
    StepLogged,
    TrainingStarted,
)
from hpckit.events.since_last_start import since_start
from hpckit.slurm.scontrol import field, show_job
from hpckit.submit.newest_checkpoint import UNREPORTED_PROGRESS_S
from hpckit.supervisor.supervised_run import SupervisedRun
from hpckit.text.quantities import span, times

log = logging.getLogger(__name__)

_WARNED = 2
"""Number of jobs in a row without a new checkpoint from which on it is reported."""
_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class UnproductiveJob:
    """A job that has started since the newest checkpoint and has made none."""

    nodes: int
    seconds: float
    """From its start to its last event."""
    start_up_s: float | None
    """Seconds from its start until its ranks trained; None: they never did."""
    has_stepped: bool
    """Whether it recorded a step."""
    verdict: str | None
    """The verdict on its last generation; None: it was killed before one."""

    @property
    def node_hours(self) -> float:
        return self.nodes * self.seconds / 3600


def unproductive_jobs(events: Iterable[Event], *, is_program: bool) -> list[UnproductiveJob]:
    """Returns the Slurm jobs since the newest checkpoint that have made none, oldest first, as far
    as no person started the run since. The present job is one of them until it makes one. Pure.

    Args:
        is_program: whether the ranks execute a program of the user. Such a program may save
            checkpoints without reporting them: a step that no job before it has reached is
            progress, too, and so is half an hour without any report.
    """
    jobs: list[UnproductiveJob] = []
    begun_s = 0.0
    newest: int | None = None
    for event in since_start(events):
        reached = _reached(event, is_program)
        if newest is not None and reached is not None and reached > newest:
            # what the first generation of a job finds was made by the job before
            is_found = isinstance(event, GenerationStarted) and jobs and jobs[-1].verdict is None
            jobs = jobs[-1:] if is_found else []
        if reached is not None:
            newest = max(newest or 0, reached)
        if isinstance(event, TrainingStarted) and not is_program:
            newest = min(newest or 0, event.step)  # a newer checkpoint may be damaged
        if isinstance(event, RunStarted):
            jobs = [] if is_program and _may_have_saved(jobs) else jobs
            begun_s = event.time
            if event.job is not None:
                jobs.append(UnproductiveJob(len(event.hosts or [None]), 0.0, None, False, None))
        elif jobs:
            jobs[-1] = _after(jobs[-1], event, max(0.0, event.time - begun_s))
    return jobs


def _reached(event: Event, is_program: bool) -> int | None:
    match event:
        case CheckpointCommitted() | CheckpointReported():
            return event.step
        case GenerationStarted():
            return event.from_step or 0
        case StepLogged() if is_program:
            return event.step
    return None


def _may_have_saved(jobs: Sequence[UnproductiveJob]) -> bool:
    return bool(jobs) and not jobs[-1].has_stepped and jobs[-1].seconds > UNREPORTED_PROGRESS_S


def _after(job: UnproductiveJob, event: Event, seconds: float) -> UnproductiveJob:
    job = replace(job, seconds=max(job.seconds, seconds))
    match event:
        case TrainingStarted() if job.start_up_s is None:
            return replace(job, start_up_s=seconds)
        case StepLogged():
            return replace(job, has_stepped=True)
        case GenerationEnded():
            return replace(job, verdict=event.verdict)
    return job


def is_exhausted(jobs: Sequence[UnproductiveJob], retry: RetrySpec) -> bool:
    """Returns whether no further job may follow these. A single one never ends a run. Pure."""
    most, hours = retry.jobs_without_checkpoint, retry.node_hours_without_checkpoint
    if most is not None and len(jobs) >= most:
        return True
    return hours is not None and len(jobs) >= _WARNED and _node_hours(jobs) >= hours


def describe(jobs: Sequence[UnproductiveJob], spec: RunSpec) -> str:
    """Returns how much the jobs have cost, how the last one ended, and what to change. Pure."""
    last, used = jobs[-1], _node_hours(jobs)
    how = INTERRUPTED.get(last.verdict or "killed", str(last.verdict))
    many = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs in a row"
    ended = f"the last one: {how} after {span(last.seconds)}"
    return (
        f"{many} gave no new checkpoint in {used:.3g} node-hours ({ended}); {_advice(jobs, spec)}"
    )


def _advice(jobs: Sequence[UnproductiveJob], spec: RunSpec) -> str:
    slurm = spec.cluster.slurm
    limit = slurm.time_limit if slurm else None
    notice = slurm.notice_s if slurm else None
    start_ups = [job.start_up_s for job in jobs if job.start_up_s is not None]
    if not start_ups:
        longest = span(max(job.seconds for job in jobs))
        return (
            f"none of them trained within {longest}: raise cluster.slurm.time_limit "
            f"({limit or 'of the partition'}), or see in the logs what the start takes"
        )
    return (
        f"they trained after up to {span(max(start_ups))}: raise cluster.slurm.time_limit "
        f"({limit or 'of the partition'}), give the last save more time with "
        f"cluster.slurm.notice_s ({notice}) and cluster.grace_s ({spec.cluster.grace_s:g}), or "
        f"save more often with checkpoint.every_steps ({spec.checkpoint.every_steps}) or "
        "checkpoint.every_minutes"
    )


def _node_hours(jobs: Sequence[UnproductiveJob]) -> float:
    return sum(job.node_hours for job in jobs)


def start_verdict(supervised: SupervisedRun, written: Sequence[Event]) -> Verdict | None:
    """Returns the final verdict if the jobs before this one have used up the budget, as after jobs
    that were killed, which nobody judged; else None.

    Args:
        written: the run's events so far, with the start of this job.
    """
    if supervised.job is None:
        return None
    jobs = unproductive_jobs(written, is_program=supervised.spec.command is not None)[:-1]
    return _final(jobs, supervised.spec) if is_exhausted(jobs, supervised.spec.retry) else None


def end_verdict(supervised: SupervisedRun, verdict: Verdict) -> Verdict:
    """Returns the verdict that a job ends with: `verdict`, or a final one if the budget is used up.
    From the second job in a row without a new checkpoint on it emits a `degraded` event."""
    if verdict.final or supervised.job is None:
        return verdict
    spec = supervised.spec
    written = read_events(supervised.run.events)
    jobs = unproductive_jobs(written, is_program=spec.command is not None)
    if is_exhausted(jobs, spec.retry):
        return _final(jobs, spec)
    if len(jobs) >= _WARNED:
        most = spec.retry.jobs_without_checkpoint
        until = f"; the run ends after {times(most)}" if most is not None else ""
        what = f"{describe(jobs, spec)}{until} (retry.jobs_without_checkpoint)"
        log.warning(what)
        supervised.events.emit(Degraded(subject=DegradedSubject.CHECKPOINT_PROGRESS, what=what))
    return verdict


def _final(jobs: Sequence[UnproductiveJob], spec: RunSpec) -> Verdict:
    retry = spec.retry
    keys = (
        f"retry.jobs_without_checkpoint={retry.jobs_without_checkpoint}, "
        f"retry.node_hours_without_checkpoint={retry.node_hours_without_checkpoint}"
    )
    reason = f"{describe(jobs, spec)} ({keys})"
    log.error(reason)
    return Verdict(VerdictKind.PERMANENT, True, reason)


def warn_of_short_rest(supervised: SupervisedRun, written: Sequence[Event]) -> None:
    """Emits a `degraded` event if a start of the ranks took longer, in the earlier jobs of this
    run, than this job has left until the notice of its time limit."""
    slurm, job = supervised.spec.cluster.slurm, supervised.job
    start_up_s = usual_start_up_s(written)
    if slurm is None or job is None or start_up_s is None:
        return
    end_s = _end_of(job.job)
    if end_s is None or (left_s := end_s - slurm.notice_s - time.time()) >= start_up_s:
        return
    what = (
        f"ranks trained {span(start_up_s)} after the start of earlier jobs, but this job has only "
        f"{span(left_s)} left until the notice of its time limit (cluster.slurm.notice_s="
        f"{slurm.notice_s}): raise cluster.slurm.time_limit"
    )
    log.warning(what)
    supervised.events.emit(Degraded(subject=DegradedSubject.CHECKPOINT_PROGRESS, what=what))


def usual_start_up_s(written: Iterable[Event]) -> float | None:
    """Returns the seconds that the fastest job before the last one needed from its start until its
    ranks trained; if none of them ever did, how long the longest of them tried. None: there is no
    such job. Pure."""
    begun_s: float | None = None
    found: list[float] = []
    tried: list[float] = []
    has_trained = False
    last_s = 0.0
    for event in written:
        if isinstance(event, RunStarted):
            if begun_s is not None and not has_trained:
                tried.append(max(0.0, last_s - begun_s))
            begun_s, has_trained = event.time, False
        elif isinstance(event, TrainingStarted) and begun_s is not None and not has_trained:
            has_trained = True
            found.append(max(0.0, event.time - begun_s))
        last_s = event.time
    if has_trained:
        found.pop()  # of the present job
    return min(found) if found else max(tried, default=None)


def _end_of(job: str) -> float | None:
    """Returns when the time limit ends the job, in seconds since the epoch; None: unknown."""
    try:
        end = field(show_job(job, _TIMEOUT_S), "EndTime")
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("cannot find out when job %s has to end: %s", job, error)
        end = os.environ.get("SLURM_JOB_END_TIME")
    return float(end) if end is not None and end.isdigit() else None
