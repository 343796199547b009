"""Whether a supervisor lives that an agent hears nothing of: by what it says to others."""

from __future__ import annotations

from pathlib import Path

from hpckit.events.event_log import EventTail

_ITS_OWN = frozenset(
    ("agent_started", "node_lost", "generation_ended", "generation_started", "run_ended")
)
"""Events that nobody else writes. One that has lost an agent, and lives, starts another, or ends
the generation: within `crew.MOST_RECALL_S` at the latest."""


class SupervisorLiveness:
    """What the events of a run tell of its supervisor from now on."""

    def __init__(self, events: Path) -> None:
        self._tail = EventTail(events, from_end=True)
        self._has_spoken = False

    def has_spoken(self) -> bool:
        """Whether it has said anything by now.

        Raises:
            OSError: the events cannot be read.
        """
        self._has_spoken |= any(event.kind in _ITS_OWN for event in self._tail.read())
        return self._has_spoken
