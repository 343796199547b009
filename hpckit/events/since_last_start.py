"""Selects the events since a person last started the run, including those of successor and requeued
jobs, by a pure function."""

from __future__ import annotations

from collections.abc import Iterable

from hpckit.events.schema import Event, RunStarted, SuccessorQueued


def since_start(events: Iterable[Event]) -> list[Event]:
    """Returns the events from the last `run_started` whose job was not queued by the job before
    it."""
    found: list[Event] = []
    jobs: set[str] = set()  # jobs that continue a former one without a person
    for event in events:
        if isinstance(event, SuccessorQueued):
            jobs.add(event.job)
        elif isinstance(event, RunStarted) and event.job not in jobs:
            found, jobs = [], {event.job} if event.job else set()
        found.append(event)
    return found
