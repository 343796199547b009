"""The progress of a run from its events, as a pure function, for `hpckit status` and `why`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from checkpointing.events import CheckpointCommitted, ReplicasDiffer
from hpckit.config.rules.validation_and_evaluation import PREFIX
from hpckit.events.schema import (
    CheckpointCertified,
    CheckpointReported,
    DeepHealthEnded,
    Degraded,
    Event,
    GenerationStarted,
    HangExplained,
    JobRefused,
    JobRequeued,
    NodesExcluded,
    RunEnded,
    RunEvent,
    RunFailed,
    RunRefused,
    RunStarted,
    SpikeFound,
    StepLogged,
    StragglerCost,
    StragglerFound,
    StragglerOver,
    SuccessorBlocked,
    SuccessorCancelled,
    SuccessorQueued,
    SuccessorUnblocked,
    TrainingStarted,
    UpdateSkipped,
    Validated,
    WorkerLost,
    WrongComputation,
)
from hpckit.events.skipped_updates import skipped_updates
from hpckit.report.ettr import ettr, training_share
from hpckit.report.interruptions import RunInterruption, interruptions, last_interruption
from hpckit.report.source_progress import newest_sources
from hpckit.report.straggler_summary import describe_cost, present_cost
from hpckit.slurm.node_exclusion import excluded_from

_Kind = TypeVar("_Kind", bound=Event)
_RECENT = 20
"""Number of step records that the rate is computed from."""


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run according to its events; times are seconds since the epoch."""

    steps: int | None
    """Number of steps that it is to have."""
    step: int
    """The last logged step."""
    step_time: float | None
    """Time of that step."""
    step_s: float | None
    """Median seconds of a recent step."""
    tokens_per_s: float | None
    samples_per_s: float | None
    data_wait: float | None
    """Share of the time of the newest recorded step that was spent waiting for data."""
    ettr: float | None
    """The ETTR since the run first began, see `hpckit.report.ettr`."""
    training_share: float | None
    """The share of the time since the first step record that went into steps which count."""
    loss: float | None
    validated: str | None
    """The result of the newest validation, as text."""
    sources: dict[str, dict[str, Any]]
    """The newest progress of each source of a mixture, as of the event `mixture`."""
    saved_step: int
    """Step of the newest committed checkpoint; 0 if there is none."""
    saved_time: float | None
    generation: int
    nodes: int
    ranks: int
    hosts: tuple[str, ...]
    job: str | None
    """Slurm's id of the job that began last."""
    successor: str | None
    """Slurm's id of the successor job."""
    excluded: tuple[str, ...]
    """Slurm's names of the nodes that the successor job, or a requeue of the last job, must not
    get."""
    no_successor: str | None
    """Why there is no successor job, if the supervisor has said so."""
    blocked: SuccessorBlocked | None
    """What keeps the successor job from ever starting, if the supervisor has said so."""
    refused: str | None
    """What sbatch printed when it refused the last job that a person submitted for the run."""
    begun: float | None
    """When the newest supervisor began."""
    is_training: bool
    """Whether the newest generation has reached training and has lost no worker since."""
    ended: str | None
    """The verdict that the newest supervisor ended with."""
    failure: str | None
    """The error by which the supervisor itself failed."""
    interruptions: dict[str, int]
    """Number of interruptions so far, by kind."""
    last_interruption: RunInterruption | None
    """The newest of them."""
    degraded: str | None
    """The newest degradation that was reported."""
    stragglers: tuple[str, ...]
    """Stragglers and what they cost, as text."""
    straggler_cost: StragglerCost | None
    """What the newest window of traced steps of the present attempt has shown."""
    health_problems: tuple[str, ...]
    """What the newest measurement of the nodes (`health.deep`) has found."""
    hang: str | None
    """What the newest hang came from."""
    certified_step: int | None
    """The newest step at which all ranks computed alike (`checkpoint.certify`)."""
    wrong: str | None
    """Which rank computed wrongly at the newest check, if ranks did not compute alike."""
    skipped_updates: str | None
    """How many updates are left out (`heal=skip`), and the newest of them."""
    differing: str | None
    """What replicas differed at the last save at which any did, since the newest supervisor
    began."""


def build_progress(events: Sequence[Event]) -> RunProgress:
    """Build the progress from `events` in the order of time."""
    begun = _last(events, RunStarted)
    life = events[events.index(begun) :] if begun else events
    trained, generation = _last(life, TrainingStarted), _last(events, GenerationStarted)
    saved, step = _last_saved(events), _last(events, StepLogged)
    ended = _last(life, RunEnded)
    failed = next((e for e in reversed(events) if isinstance(e, RunFailed | RunRefused)), None)
    if failed and any(isinstance(e, RunStarted) and e.time > failed.time for e in events):
        failed = None
    steps = [event for event in events if isinstance(event, StepLogged)]
    recent = [event for event in steps if _is_recent(event, generation)][-_RECENT:]
    worst, measured = _last(life, Degraded), _last(events, DeepHealthEnded)
    return RunProgress(
        steps=begun.steps if begun else None,
        step=_reached(step, _last(events, TrainingStarted)),
        step_time=step.time if step else None,
        step_s=median([float(event.step_s) for event in recent]) if recent else None,
        tokens_per_s=recent[-1].tokens_per_s if recent else None,
        samples_per_s=recent[-1].samples_per_s if recent else None,
        data_wait=recent[-1].data_wait_share if recent else None,
        ettr=_ettr(events, steps),
        training_share=_training_share(steps),
        loss=step.loss if step else None,
        validated=_validated(_last(events, Validated)),
        sources=newest_sources(events),
        saved_step=saved.step if saved else 0,
        saved_time=saved.time if saved else None,
        generation=generation.generation if generation else 0,
        nodes=generation.nodes if generation else 0,
        ranks=trained.world_size if trained else 0,
        hosts=tuple((begun and begun.hosts) or ()),
        job=begun.job if begun else None,
        successor=_successor(events),
        excluded=excluded_from(events, _successor(events) or _newest_job(events) or ""),
        no_successor=_no_successor(life),
        blocked=_blocked(life),
        refused=_refused(events),
        begun=begun.time if begun else None,
        is_training=_trains(trained, generation, _last(life, WorkerLost)),
        ended=ended.verdict if ended else None,
        failure=failed.error if failed else None,
        interruptions=interruptions(events),
        last_interruption=last_interruption(events),
        degraded=worst.what if worst else None,
        stragglers=_stragglers(life[life.index(trained) :] if trained else []),
        straggler_cost=present_cost(life),
        health_problems=tuple(measured.found) if measured else (),
        hang=_hang(_last(life, HangExplained)),
        certified_step=_certified(_last(events, CheckpointCertified)),
        wrong=_wrong(events),
        skipped_updates=_skipped(events),
        differing=_differing(_last(life, ReplicasDiffer)),
    )


def _ettr(events: Sequence[Event], steps: Sequence[StepLogged]) -> float | None:
    first = next((event.time for event in events if isinstance(event, RunStarted)), None)
    if first is None or not steps:
        return None
    # a fork begins with the steps of its parent
    begun = next((event.step for event in events if isinstance(event, TrainingStarted)), 0)
    trained_s = max(0, max(event.step for event in steps) - begun) * _step_s(steps)
    return ettr(trained_s, events[-1].time - first)


def _training_share(steps: Sequence[StepLogged]) -> float | None:
    return min(1.0, training_share(steps, _step_s(steps))) if len(steps) >= 2 else None


def _step_s(steps: Sequence[StepLogged]) -> float:
    return median(float(event.step_s) for event in steps)


def describe_spike(event: SpikeFound) -> str:
    """Describe a spike and what followed."""
    steps = f"steps {event.first_step:,} to {event.step:,}"
    where = steps if event.first_step < event.step else f"step {event.step:,}"
    if not event.is_left_out:
        return f"{where}: {event.what}; nothing was left out, and the run ended"
    last = event.end_position - 1
    return f"{where}: {event.what}; positions {event.first_position:,} to {last:,} are left out"


def describe_skipped(event: UpdateSkipped) -> str:
    """Describe a step that the optimizer was not to make."""
    if not event.is_skipped:
        return f"step {event.step:,}: {event.what}; too many updates were left out before"
    if event.first_position is None or event.end_position is None:
        return f"step {event.step:,}: {event.what}; its update is left out"
    positions = f"positions {event.first_position:,} to {event.end_position - 1:,}"
    return f"step {event.step:,}: {event.what}; its update is left out, of {positions}"


def _skipped(events: Sequence[Event]) -> str | None:
    found = [*skipped_updates(events).values()]
    if not found:
        return None
    return f"{len(found):,} left out, the newest in {describe_skipped(found[-1])}"


def describe_straggler(event: StragglerFound) -> str:
    """Describe a straggler."""
    longer = f"takes {event.excess:.0%} longer than ranks with the same work"
    return f"rank {event.rank} on {event.host} {longer}"


def validated_words(event: Validated) -> str:
    """Describe the results of a validation."""
    found = {name: value for name, value in event.fields.items() if name.startswith(PREFIX)}
    return ", ".join(f"{name} {value:.4g}" for name, value in found.items())


def _validated(event: Validated | None) -> str | None:
    return f"{validated_words(event)} at step {event.step:,}" if event else None


def describe_hang(event: HangExplained) -> str:
    """Describe a hang and what it came from."""
    return f"after step {event.step:,}: {event.text}"


def _hang(event: HangExplained | None) -> str | None:
    return None if event is None else describe_hang(event)


def _certified(event: CheckpointCertified | None) -> int | None:
    return None if event is None else event.step


def _wrong(events: Sequence[Event]) -> str | None:
    kinds = (CheckpointCertified, WrongComputation)
    newest = next((one for one in reversed(events) if isinstance(one, kinds)), None)
    return newest.what if isinstance(newest, WrongComputation) else None


def _differing(event: ReplicasDiffer | None) -> str | None:
    return None if event is None else f"at step {event.step:,}: {event.summary}"


def _stragglers(attempt: Sequence[Event]) -> tuple[str, ...]:
    """Return the ranks of the newest attempt that are still slow, and what they cost."""
    found: dict[int, str] = {}
    for event in attempt:
        if isinstance(event, StragglerFound):
            found[event.rank] = describe_straggler(event)
        elif isinstance(event, StragglerOver):
            found.pop(event.rank, None)
    cost = present_cost(attempt)
    costs = (describe_cost(cost),) if cost is not None and cost.ranks else ()
    return (*(found[rank] for rank in sorted(found)), *costs)


def _attempt(event: TrainingStarted | WorkerLost) -> int:
    return event.attempt or 0


def _successor(events: Sequence[Event]) -> str | None:
    """Return the job that was queued last, unless it has begun or was cancelled."""
    queued: str | None = None
    for event in events:
        if isinstance(event, SuccessorQueued):
            queued = event.job
        elif isinstance(event, SuccessorCancelled | RunStarted) and event.job == queued:
            queued = None
    return queued


def _newest_job(events: Sequence[Event]) -> str | None:
    """Return the job that began last, or one that was submitted since without some nodes."""
    kinds = NodesExcluded | RunStarted
    return next((event.job for event in reversed(events) if isinstance(event, kinds)), None)


def _no_successor(life: Sequence[Event]) -> str | None:
    """Return the newest reason why there is no successor job, unless one was queued since."""
    found: str | None = None
    for event in life:
        match event:
            case SuccessorQueued() | JobRequeued():
                found = None
            case Degraded() if event.is_of_successor:
                found = event.what
            case SuccessorCancelled():
                found = f"job {event.job} was cancelled"
    return found


def _blocked(life: Sequence[Event]) -> SuccessorBlocked | None:
    """Return what blocks the successor job, unless that is over or another one was queued."""
    kinds = SuccessorBlocked | SuccessorUnblocked | SuccessorCancelled | SuccessorQueued
    last = next((event for event in reversed(life) if isinstance(event, kinds)), None)
    return last if isinstance(last, SuccessorBlocked) else None


def _refused(events: Sequence[Event]) -> str | None:
    """Return why the job that was submitted last was refused, unless one began since."""
    kinds = JobRefused | RunStarted
    last = next((event for event in reversed(events) if isinstance(event, kinds)), None)
    return last.error if isinstance(last, JobRefused) else None


def _trains(
    trained: TrainingStarted | None, generation: GenerationStarted | None, lost: WorkerLost | None
) -> bool:
    """Returns whether it trains; compared by generation numbers, since the clocks of nodes may
    differ."""
    if trained is None or not _is_recent(trained, generation):
        return False
    is_of_it = lost is not None and _is_recent(lost, generation)
    return not (is_of_it and lost and _attempt(lost) >= _attempt(trained))


def _is_recent(event: RunEvent, generation: GenerationStarted | None) -> bool:
    return generation is not None and event.generation == generation.generation


def _reached(step: StepLogged | None, trained: TrainingStarted | None) -> int:
    """Return the number of finished steps: a restart may have gone back behind the last logged
    one."""
    if step is None or (trained is not None and trained.time > step.time):
        return trained.step if trained else 0
    return step.step


def _last_saved(events: Sequence[Event]) -> CheckpointCommitted | CheckpointReported | None:
    """Returns the event of the newest checkpoint, of hpckit's own or of a program."""
    kinds = CheckpointCommitted | CheckpointReported
    return next((event for event in reversed(events) if isinstance(event, kinds)), None)


def _last(events: Sequence[Event], kind: type[_Kind]) -> _Kind | None:
    return next((event for event in reversed(events) if isinstance(event, kind)), None)
