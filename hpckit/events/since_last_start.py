"""Selects the events since a person last started the run, including those of successor and requeued
jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hpckit.events.event_log import Event


def since_start(events: Iterable[Event]) -> list[Event]:
    """Returns the events from the last `run_started` whose job was not queued by the job before
    it."""
    found: list[Event] = []
    jobs: set[str] = set()  # jobs that continue a former one by themselves
    for event in events:
        if event.kind == "successor_queued":
            jobs.add(event["job"])
        elif event.kind == "run_started" and event.get("job") not in jobs:
            found, jobs = [], {event["job"]} if event.get("job") else set()
        found.append(event)
    return found
