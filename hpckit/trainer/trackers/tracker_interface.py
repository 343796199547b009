"""The interface of a tracker for `TrackerDelivery`, with its two kinds of failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StepRecord:
    """The results of a step."""

    kind: str
    """`step` or `validated`."""
    step: int
    time: float
    """Seconds since the epoch."""
    values: Mapping[str, float]


class TrackerUnavailableError(Exception):
    """The tracker cannot be reached now; a later try may succeed."""


class TrackerRejectedError(Exception):
    """The tracker will never accept these records."""


class Tracker(Protocol):
    """A run that is open at a tracker. Methods may wait for the network."""

    run: str
    """The tracker's own name of the run, by which the next attempt finds it."""
    note: str | None
    """A note for the user on how the run was opened."""

    def send(self, records: Sequence[StepRecord]) -> None:
        """Send records to the tracker.

        Raises:
            TrackerUnavailableError: nothing was delivered; try again.
            TrackerRejectedError: nothing was delivered, nor will it ever be.
        """

    def close(self, is_done: bool) -> None:
        """End the attempt; `is_done`: the run has ended too. Raises as `send`."""
