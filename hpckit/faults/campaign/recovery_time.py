"""The parts of the time between a fault and the first new step, from events alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpckit.events.schema import (
    Event,
    GenerationEnded,
    RunEnded,
    RunStarted,
    StepLogged,
    TrainingStarted,
    WorkerStarted,
)
from hpckit.faults.campaign.fault_log import RecordedFault

_KNOWN = (
    *("worker_lost", "hang", "wrong_computation", "node_lost", "asked", "node_ended"),
    "generation_ended",
)


@dataclass(frozen=True)
class RecoveryTime:
    """The parts in seconds; their sum is the time from the fault to the first new step."""

    detect: float
    """Until the fault is detected; of a preemption, until the ranks are asked to leave."""
    queue: float
    """From the end of a job's last generation to the start of the next job."""
    meet: float
    """Until all ranks exist: exit, start of processes, rendezvous."""
    load: float
    """Until they train."""
    recompute: float
    """Until the first step that was not done before."""

    @property
    def total(self) -> float:
        return self.detect + self.queue + self.meet + self.load + self.recompute


def recovery_time(
    events: Sequence[Event], struck: RecordedFault, until: float = math.inf
) -> RecoveryTime | None:
    """Return the parts. None: no rank was restarted after the fault, or no new step was finished.

    Args:
        until: time of the next fault.
    """
    later = [event for event in events if struck.time <= event.time < until]
    trains = next((e for e in later if isinstance(e, TrainingStarted)), None)
    if trains is None:
        return None
    new = (e for e in later if isinstance(e, StepLogged) and e.time >= trains.time)
    step = next((e for e in new if e["step"] > struck.step), None)
    if step is None:
        return None
    before = [e for e in later if e.time <= trains.time]
    there_s = max((e.time for e in before if isinstance(e, WorkerStarted)), default=trains.time)
    # as the clocks of hosts differ, ranks may be back before their loss is recorded
    known_s = min(there_s, next((e.time for e in before if e.kind in _KNOWN), struck.time))
    queue_s = min(there_s - known_s, sum(_queues(before)))
    return RecoveryTime(
        detect=known_s - struck.time,
        queue=queue_s,
        meet=there_s - known_s - queue_s,
        load=trains.time - there_s,
        recompute=step.time - trains.time,
    )


def _queues(events: Sequence[Event]) -> Iterator[float]:
    """Return the seconds that the run waited for each of its next jobs."""
    left_s: float | None = None
    for event in events:
        if isinstance(event, GenerationEnded | RunEnded):
            left_s = event.time
        elif isinstance(event, RunStarted) and left_s is not None:
            yield event.time - left_s
            left_s = None
