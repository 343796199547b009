"""Which checkpoints are not used after ranks have computed differently: those that were made since
all of them computed alike. Only `PastDifferences` reads events of another rank, the rest is
pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hpckit.events.earlier_events import EarlierEvents
from hpckit.events.schema import Event, WrongComputation
from hpckit.trainer.parallel.collectives import rows_of_rank_0


class DoubtfulSteps(NamedTuple):
    """The steps between a check that has passed and one that has failed."""

    good_step: int
    """The last step of which all ranks computed alike, or at which checks began."""
    step: int
    """The step at which ranks computed differently."""


def doubtful_steps(events: Iterable[Event]) -> list[DoubtfulSteps]:
    """Return the doubtful steps of a run, by its events, in their order."""
    return [
        DoubtfulSteps(event.good_step, event.step)
        for event in events
        if isinstance(event, WrongComputation)
    ]


def doubts_about(found: list[DoubtfulSteps], step: int, known: int) -> DoubtfulSteps | None:
    """Return the doubtful steps that a state is of; None: it is of none.

    Args:
        found: all doubtful steps of the run, in their order.
        step: the step of the state.
        known: number of them that were known when the state was saved. It was trained later than
            these, from a checkpoint before them.
    """
    later = found[known:]
    return next((one for one in later if one.good_step < step <= one.step), None)


class PastDifferences:
    """The differences that earlier attempts have found."""

    def __init__(self, earlier: EarlierEvents) -> None:
        """Take what rank 0 has read. Collective."""
        # as written, as states refer to differences by their number, and rank 0 of an earlier
        # attempt may have had another clock
        rows = rows_of_rank_0(doubtful_steps(earlier.written), len(DoubtfulSteps._fields))
        self._doubtful = [DoubtfulSteps(*row) for row in rows]

    @property
    def saved(self) -> dict[str, int]:
        """What has to be saved with a state, for `problem_of_state`; nothing as long as ranks have
        never computed differently."""
        return {"differences": len(self._doubtful)} if self._doubtful else {}

    def problem_of_state(self, saved: Mapping[str, Any]) -> str | None:
        """Return why a restored state must not be used: ranks may have computed wrongly on the way
        to it. None: it may be used.

        Args:
            saved: its step, and its `saved`.
        """
        known = int(saved.get("differences", 0))
        found = doubts_about(self._doubtful, int(saved["step"]), known)
        return found and (
            f"the ranks computed differently at step {found.step}, and alike at step "
            f"{found.good_step} for the last time"
        )
