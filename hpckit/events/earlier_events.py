"""What earlier attempts of a run have written to its events, but for its steps."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from hpckit.events.checkpoints_left_behind import checkpoints_left_behind
from hpckit.events.clock_order import in_order
from hpckit.events.event_log import EventTail
from hpckit.events.schema import Event
from hpckit.rundir.directory import RunDir


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


def ids_left_behind(run: RunDir) -> dict[str, str]:
    """Return the ids of the checkpoints that a run does not use any more, and why."""
    return checkpoints_left_behind(EarlierEvents(run.events, is_reader=True).by_time)
