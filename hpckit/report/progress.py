"""The progress of a run from its events, as a pure function, for `hpckit status` and `why`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hpckit.config.rules.validation import PREFIX
from hpckit.events.event_log import Event
from hpckit.report.ettr import training_share

_OF_SUCCESSORS = ("queued", "successor")
"""Words in a degradation's text that only appear if it is about the successor job."""
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
    data_wait: float | None
    """Share of the time of the newest recorded step that was spent waiting for data."""
    ettr: float | None
    """The ETTR since the run first began, see `hpckit.report.ettr`."""
    loss: float | None
    validated: str | None
    """The result of the newest validation, as text."""
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
    no_successor: str | None
    """Why there is no successor job, if the supervisor has said so."""
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
    degraded: str | None
    """The newest degradation that was reported."""
    stragglers: tuple[str, ...]
    """Stragglers, as text."""
    differing: str | None
    """What replicas differed at the last save at which any did, since the newest supervisor
    began."""


def build_progress(events: Sequence[Event]) -> RunProgress:
    """Build the progress from `events` in the order of time."""
    begun = _last(events, "run_started")
    life = events[events.index(begun) :] if begun else events
    trained, generation = _last(life, "training_started"), _last(events, "generation_started")
    saved, step = _last(events, "checkpoint_committed"), _last(events, "step")
    ended = _last(life, "run_ended")
    failed = _last(events, "run_failed", "run_refused")
    if failed and any(e.kind == "run_started" and e.time > failed.time for e in events):
        failed = None
    recent = [e for e in events if e.kind == "step" and _is_recent(e, generation)][-_RECENT:]
    worst = _last(life, "degraded")
    return RunProgress(
        steps=_get(_last(events, "run_started"), "steps"),
        step=_reached(step, _last(events, "training_started")),
        step_time=step.time if step else None,
        step_s=median([float(e["step_s"]) for e in recent]) if recent else None,
        tokens_per_s=_get(recent[-1], "tokens_per_s") if recent else None,
        data_wait=_get(recent[-1], "data_wait_share") if recent else None,
        ettr=_ettr([e for e in events if e.kind == "step"]),
        loss=_get(step, "loss"),
        validated=_validated(_last(events, "validated")),
        saved_step=_get(saved, "step") or 0,
        saved_time=saved.time if saved else None,
        generation=_get(generation, "generation") or 0,
        nodes=_get(generation, "nodes") or 0,
        ranks=_get(trained, "world_size") or 0,
        hosts=tuple(_get(begun, "hosts") or ()),
        job=_get(begun, "job"),
        successor=_successor(events),
        no_successor=_no_successor(life),
        begun=begun.time if begun else None,
        is_training=_trains(trained, generation, _last(life, "worker_lost")),
        ended=_get(ended, "verdict"),
        failure=_get(failed, "error"),
        interruptions=interruptions(events),
        degraded=_get(worst, "what"),
        stragglers=_stragglers(life[life.index(trained) :] if trained else []),
        differing=_differing(_last(life, "replicas_differ")),
    )


def _ettr(steps: Sequence[Event]) -> float | None:
    if len(steps) < 2:
        return None
    return min(1.0, training_share(steps, median(float(e["step_s"]) for e in steps)))


def interruptions(events: Sequence[Event]) -> dict[str, int]:
    """Count how often each kind of interruption hit the run, after which it continued."""
    found = Counter(
        str(event["verdict"])
        for event in events
        if event.kind == "generation_ended" and not event.get("final", False)
    )
    found["killed"] = _silent_ends(events)
    found["worker lost"] = _restarts_in_place(events)
    return {kind: count for kind, count in found.items() if count}


def describe_straggler(event: Event) -> str:
    """Describe an event "straggler"."""
    longer = f"takes {event['excess']:.0%} longer than ranks with the same work"
    return f"rank {event['rank']} on {event['host']} {longer}"


def validated_words(event: Event) -> str:
    """Describe an event "validated"."""
    found = {name: value for name, value in event.fields.items() if name.startswith(PREFIX)}
    return ", ".join(f"{name} {value:.4g}" for name, value in found.items())


def _validated(event: Event | None) -> str | None:
    return f"{validated_words(event)} at step {event['step']:,}" if event else None


def _differing(event: Event | None) -> str | None:
    return None if event is None else f"at step {event['step']:,}: {event['summary']}"


def _stragglers(attempt: Sequence[Event]) -> tuple[str, ...]:
    """Return the ranks of the newest attempt that are still slow."""
    found: dict[int, str] = {}
    for event in attempt:
        if event.kind == "straggler":
            found[event["rank"]] = describe_straggler(event)
        elif event.kind == "straggler_over":
            found.pop(event["rank"], None)
    return tuple(found[rank] for rank in sorted(found))


def _silent_ends(events: Sequence[Event]) -> int:
    """Count supervisors that were followed by another one without having recorded their end."""
    count, is_open = 0, False
    for event in events:
        if event.kind == "run_started":
            count += is_open
            is_open = True
        elif event.kind in ("run_ended", "run_failed"):
            is_open = False
    return count


def _restarts_in_place(events: Sequence[Event]) -> int:
    return sum(event.kind == "training_started" and event.get("attempt", 0) > 0 for event in events)


def _successor(events: Sequence[Event]) -> str | None:
    """Return the job that was queued last, unless it has begun or was cancelled."""
    queued: str | None = None
    for event in events:
        if event.kind == "successor_queued":
            queued = str(event["job"])
        elif event.kind in ("successor_cancelled", "run_started") and event.get("job") == queued:
            queued = None
    return queued


def _no_successor(life: Sequence[Event]) -> str | None:
    """Return the newest reason why there is no successor job, unless one was queued since."""
    found: str | None = None
    for event in life:
        if event.kind in ("successor_queued", "job_requeued"):
            found = None
        elif event.kind == "degraded" and any(word in event["what"] for word in _OF_SUCCESSORS):
            found = str(event["what"])
        elif event.kind == "successor_cancelled":
            found = f"job {event['job']} was cancelled"
    return found


def _trains(trained: Event | None, generation: Event | None, lost: Event | None) -> bool:
    """Whether it trains; compared by generation numbers, since the clocks of nodes may differ."""
    if trained is None or not _is_recent(trained, generation):
        return False
    is_of_it = lost is not None and _is_recent(lost, generation)
    return not (is_of_it and lost and lost.get("attempt", 0) >= trained.get("attempt", 0))


def _is_recent(event: Event, generation: Event | None) -> bool:
    return generation is not None and event.get("generation") == generation["generation"]


def _reached(step: Event | None, trained: Event | None) -> int:
    """Return the number of finished steps: a restart may have gone back behind the last logged
    one."""
    if step is None or (trained is not None and trained.time > step.time):
        return int(trained["step"]) if trained else 0
    return int(step["step"])


def _last(events: Sequence[Event], *kinds: str) -> Event | None:
    return next((event for event in reversed(events) if event.kind in kinds), None)


def _get(event: Event | None, key: str) -> Any:
    return event.get(key) if event else None
