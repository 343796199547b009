"""The updates that a run has left out, by its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hpckit.events.schema import Event, TrainingStarted, UpdateSkipped


def skipped_updates(events: Iterable[Event]) -> dict[int, UpdateSkipped]:
    """Return the updates that were left out, by step, in the order of steps.

    What an attempt left out after the step from which a later one continues counts only if that one
    leaves it out, too.

    Args:
        events: of the run, in the order of time.
    """
    found: dict[int, UpdateSkipped] = {}
    for event in events:
        if isinstance(event, TrainingStarted):
            found = {step: one for step, one in found.items() if step <= event.step}
        elif isinstance(event, UpdateSkipped) and event.is_skipped:
            found[event.step] = event
    return dict(sorted(found.items()))
