"""Which checkpoints are not used after ranks have computed differently: those that were made since
all of them computed alike. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hpckit.events.schema import Event, WrongComputation


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
