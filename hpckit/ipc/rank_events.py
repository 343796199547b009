"""Events that a rank writes outside of a training loop, which has an event log of its own."""

from __future__ import annotations

import logging

from hpckit.events.event_log import EventLog
from hpckit.events.schema import Degraded, DegradedSubject, RunEvent
from hpckit.ipc.process_environment import WorkerEnvironment

log = logging.getLogger(__name__)


def emit_event(env: WorkerEnvironment, event: RunEvent) -> None:
    """Writes an event of this rank's node and generation."""
    at = env.at
    with EventLog(at.run.events, generation=at.generation, node=at.node) as events:
        events.emit(event)


def report_degraded(env: WorkerEnvironment, subject: DegradedSubject, what: str) -> None:
    """Writes what the run continues without into the log of the rank and into the events."""
    log.warning("%s", what)
    emit_event(env, Degraded(subject=subject, what=what))
