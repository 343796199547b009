"""Which events are of the run as a person last started it: those of the jobs that followed by
themselves are among them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hpckit.events.event_log import Event


def since_start(events: Iterable[Event]) -> list[Event]:
    """Those from the last `run_started` on whose job was not queued by the job before."""
    found: list[Event] = []
    jobs: set[str] = set()  # that go on from one before them, by themselves
    for event in events:
        if event.kind == "successor_queued":
            jobs.add(event["job"])
        elif event.kind == "run_started" and event.get("job") not in jobs:
            found, jobs = [], {event["job"]} if event.get("job") else set()
        found.append(event)
    return found
