"""Orders events whose clocks may be wrong, or may have been set while a run was under way."""

from __future__ import annotations

from collections.abc import Iterable

from checkpointing.events import event_with
from hpckit.events.schema import Event

LATE_S = 1800.0
"""Seconds by which an event may be older than one written before it: a rank buffers its steps for a
while, and one that was frozen writes them later. An even older event comes from another clock."""


def in_order(written: Iterable[Event]) -> list[Event]:
    """Returns events ordered by time. `written` is their order in the file, which does not depend
    on clocks.

    The times of a clock that is far behind are shifted to those of the events before, so that later
    events are not placed earlier. A clock that jumps ahead is trusted, as a jump cannot be
    distinguished from a wait. Thus the order is right, but durations across such a jump are
    unknown.
    """
    found: list[Event] = []
    offsets = [0.0]
    newest = float("-inf")
    for event in written:
        time = _nearest(event.time, offsets, newest)
        if time < newest - LATE_S:
            offsets.append(newest - event.time)
            time = newest
        newest = max(newest, time)
        found.append(event if time == event.time else _at(event, time))
    return sorted(found, key=lambda event: event.time)


def _at(event: Event, time: float) -> Event:
    """Returns the event with another time."""
    return event_with(type(event), time, dict(event.__dict__))


def _nearest(time: float, offsets: list[float], newest: float) -> float:
    """Returns the time with the clock offset that fits best among those found so far."""
    if len(offsets) == 1:
        return time
    return min((time + offset for offset in offsets), key=lambda one: abs(one - newest))
