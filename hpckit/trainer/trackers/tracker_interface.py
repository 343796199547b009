"""What every tracker is to `Delivery`: four methods, and two ways of failing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StepRecord:
    """What was found after a step."""

    kind: str
    """`step` or `validated`."""
    step: int
    time: float
    """Seconds since the epoch."""
    values: Mapping[str, float]


class TrackerUnavailableError(Exception):
    """It cannot be reached now; the same may work later."""


class TrackerRejectedError(Exception):
    """It will never take these records."""


class Tracker(Protocol):
    """One run, open at a tracker. Methods may wait for the network."""

    run: str
    """Its own name of the run, by which the next attempt finds it again."""
    note: str | None
    """What somebody has to know of how it was opened."""

    def send(self, records: Sequence[StepRecord]) -> None:
        """
        Raises:
            AwayError: nothing is told; try again.
            RefusedError: nothing is told, nor ever will be.
        """

    def close(self, is_done: bool) -> None:
        """The attempt ends; `is_done`: with the run. Raises as `send`."""
