"""The interface of a tracker, which `TrackerDelivery` uses, with its two kinds of failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StepRecord:
    """The metrics of one step."""

    kind: str
    """`step` or `validated`."""
    step: int
    time: float
    """Seconds since the epoch."""
    values: Mapping[str, float]


class TrackerUnavailableError(Exception):
    """The tracker cannot be reached; a later try may succeed."""


class TrackerRejectedError(Exception):
    """The tracker will never accept these records."""


class Tracker(Protocol):
    """A run that is open at a tracker. All methods may wait for the network."""

    run: str
    """The tracker's own id of the run, by which the next attempt finds it."""
    note: str | None
    """A message for the user about how the run was opened; None if there is nothing to say."""

    def send(self, records: Sequence[StepRecord]) -> None:
        """Send records to the tracker.

        Raises:
            TrackerUnavailableError: no record was delivered; a later try may succeed.
            TrackerRejectedError: no record was delivered, and no later try can succeed.
        """

    def close(self, is_done: bool) -> None:
        """End the attempt; `is_done`: the run has ended, too. It raises as `send`."""
