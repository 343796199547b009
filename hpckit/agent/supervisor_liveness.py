"""Tells whether a supervisor that an agent has lost contact with is alive, by its events."""

from __future__ import annotations

from pathlib import Path

from hpckit.events.event_log import EventTail

_SUPERVISOR_EVENTS = frozenset(
    ("agent_started", "node_lost", "generation_ended", "generation_started", "run_ended")
)
"""Events that only the supervisor writes. A live supervisor that has lost an agent starts another
or ends the generation, within `agent_pool.MOST_RECALL_S` at the latest."""


class SupervisorLiveness:
    """Watches a run's events for new ones of its supervisor."""

    def __init__(self, events: Path) -> None:
        self._tail = EventTail(events, from_end=True)
        self._has_spoken = False

    def has_spoken(self) -> bool:
        """Whether the supervisor has written an event since this object was made.

        Raises:
            OSError: the events cannot be read.
        """
        self._has_spoken |= any(event.kind in _SUPERVISOR_EVENTS for event in self._tail.read())
        return self._has_spoken
