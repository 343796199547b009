"""What earlier attempts of a run have written to its events, as a rank reads it at its start."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from hpckit.events.clock_order import in_order
from hpckit.events.event_log import EventTail
from hpckit.events.schema import Event


class EarlierEvents:
    """The events of a run but its steps, which are most of them. They are read once."""

    def __init__(self, path: Path, *, is_reader: bool) -> None:
        """
        Args:
            is_reader: whether this rank reads them; others have none, as they may read older ones.
        """
        self.written = list(EventTail(path).read(with_steps=False)) if is_reader else []
        """In the order in which they were written, which depends on no clock."""

    @cached_property
    def by_time(self) -> list[Event]:
        """In the order of time, as `in_order`."""
        return in_order(self.written)
