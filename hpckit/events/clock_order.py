"""The order of events whose clocks may be wrong, or set while a run is under way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpckit.events.event_log import Event

LATE_S = 1800.0
"""Seconds by which an event may be older than those that were written before it: a rank keeps its
steps for a while, and one that was frozen tells of them later. What is older was told by another
clock."""


def in_order(written: Iterable[Event]) -> list[Event]:
    """Events in the order of their times; `written` is that of their file, which no clock changes.

    A clock that is far behind counts from where the file is, so that what came after is not told
    before. One that goes ahead is believed: nobody can tell it from a wait. So the order holds, and
    of durations across such a step nothing is known.
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
        found.append(event if time == event.time else replace(event, time=time))
    return sorted(found, key=lambda event: event.time)


def _nearest(time: float, offsets: list[float], newest: float) -> float:
    """By the clock, of those that were seen so far, that fits best."""
    if len(offsets) == 1:
        return time
    return min((time + offset for offset in offsets), key=lambda one: abs(one - newest))
