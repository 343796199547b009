"""What a restart of a run costs, by the restarts that it has had. Pure functions of its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from checkpointing.events import CheckpointCommitted
from hpckit.events.schema import Event, RunEnded, RunStarted, StepLogged, TrainingStarted
from hpckit.text.quantities import count

ASSUMED_RESTART_S = 300.0
ASSUMED_QUEUE_S = 1800.0
"""Seconds of a restart, and of another job in the queue, where the run has measured none."""
NEWEST_RECORDS = 20
"""Number of the newest step records of an attempt by which its speed is measured."""


@dataclass(frozen=True)
class RestartCost:
    """What a restart costs by the history of the run."""

    seconds: float
    source: str
    """How it is known, as text for people."""


def restart_cost(events: Sequence[Event], *, in_queue: bool) -> RestartCost:
    """Returns the cost of a restart by those of the run so far: from the last step before to the
    first one after, less the duration of the steps.

    Args:
        in_queue: whether another job is needed, which waits in the queue.
    """
    gaps = _restarts(events)
    if gaps:
        found = RestartCost(median(gaps), f"by {count(len(gaps), 'restart')} of this run")
    elif (begun_s := _start_s(events)) is not None:
        found = RestartCost(begun_s + _save_s(events), "by the start of this job and its last save")
    else:
        found = RestartCost(ASSUMED_RESTART_S, "assumed, as this run has measured none")
    if not in_queue:
        return found
    waits = [
        after.time - before.time
        for before, after in _pairs(events, RunEnded, RunStarted)
        if after.time > before.time
    ]
    wait_s = median(waits) if waits else ASSUMED_QUEUE_S
    source = f"by {count(len(waits), 'earlier job')}" if waits else "assumed"
    return RestartCost(found.seconds + wait_s, f"{found.source}, and {source} in the queue")


def step_records(events: Iterable[Event]) -> list[StepLogged]:
    """Returns the records of steps among these events."""
    return [event for event in events if isinstance(event, StepLogged)]


def newest_step_s(attempt: Iterable[Event]) -> float | None:
    """Returns the median seconds of the newest steps of an attempt."""
    records = step_records(attempt)[-NEWEST_RECORDS:]
    return median(one.step_s for one in records) if records else None


def _restarts(events: Sequence[Event]) -> list[float]:
    """Returns the seconds of each restart of all workers within a job."""
    found = []
    last: StepLogged | None = None
    begun: TrainingStarted | None = None  # after a restart, until its first record
    step_s = newest_step_s(events) or 0.0
    for event in events:
        match event:
            case RunStarted():
                last = begun = None
            case TrainingStarted():
                begun = event if last is not None and not event.attempt else None
            case StepLogged():
                if begun is not None and last is not None:
                    steps = max(1, event.step - begun.step)
                    found.append(max(0.0, event.time - last.time - steps * step_s))
                last, begun = event, None
    return found


def _start_s(events: Sequence[Event]) -> float | None:
    """Returns the seconds from the start of this job to its first step."""
    at = next(
        (i for i in range(len(events) - 1, -1, -1) if isinstance(events[i], RunStarted)), None
    )
    if at is None:
        return None
    begun = next((e for e in events[at:] if isinstance(e, TrainingStarted)), None)
    return None if begun is None else max(0.0, begun.time - events[at].time)


def _save_s(events: Iterable[Event]) -> float:
    saves = [event.seconds or 0.0 for event in events if isinstance(event, CheckpointCommitted)]
    return float(saves[-1]) if saves else 0.0


def _pairs(
    events: Iterable[Event], first: type[Event], second: type[Event]
) -> Iterable[tuple[Event, Event]]:
    """Yields each event of the kind `first` with the next one of the kind `second`."""
    before: Event | None = None
    for event in events:
        if isinstance(event, first):
            before = event
        elif isinstance(event, second) and before is not None:
            yield before, event
            before = None
