"""The interruptions of a run, after which it continued or is to continue, from its events. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hpckit.events.schema import (
    Event,
    GenerationEnded,
    RunEnded,
    RunFailed,
    RunStarted,
    StepLogged,
    TrainingStarted,
    WorkerLost,
)

KILLED = "killed"
WORKER_LOST = "worker lost"


@dataclass(frozen=True)
class RunInterruption:
    """One interruption."""

    kind: str
    """As in `hpckit.events.end_reasons.INTERRUPTED`."""
    step: int
    """Number of steps that were finished."""
    time: float
    """When it was recorded, in seconds since the epoch; of a supervisor that was killed, when it
    last recorded anything."""


def interruptions(events: Sequence[Event]) -> dict[str, int]:
    """Count how often each kind of interruption hit the run, after which it continued."""
    found = Counter(
        str(event.verdict)
        for event in events
        if isinstance(event, GenerationEnded) and not event.final
    )
    found[KILLED] = _silent_ends(events)
    found[WORKER_LOST] = sum(
        isinstance(event, TrainingStarted) and (event.attempt or 0) > 0 for event in events
    )
    return {kind: count for kind, count in found.items() if count}


def last_interruption(events: Sequence[Event]) -> RunInterruption | None:
    """Return the newest interruption; None if there was none, or it is not recorded yet."""
    found: RunInterruption | None = None
    step, time, is_open = 0, 0.0, False
    for event in events:
        match event:
            case StepLogged():
                step = event.step
            case GenerationEnded() if not event.final:
                found = RunInterruption(str(event.verdict), event.get("step", step), event.time)
            case WorkerLost():
                found = RunInterruption(WORKER_LOST, event.get("step", step), event.time)
            case RunStarted():
                if is_open:
                    found = RunInterruption(KILLED, step, time)
                is_open = True
            case RunEnded() | RunFailed():
                is_open = False
        time = event.time
    return found


def _silent_ends(events: Sequence[Event]) -> int:
    """Count supervisors that were followed by another one without having recorded their end."""
    count, is_open = 0, False
    for event in events:
        if isinstance(event, RunStarted):
            count += is_open
            is_open = True
        elif isinstance(event, RunEnded | RunFailed):
            is_open = False
    return count
