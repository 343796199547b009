"""The plan of a rollback: which positions of the data are left out, which checkpoints were trained
on them, and when no further rollback is made. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from data.order.skipped_ranges import SkippedRanges
from hpckit.events.schema import Event, SpikeFound, TrainingStarted
from hpckit.trainer.spikes.spike_detection import Outlier


@dataclass(frozen=True)
class Spike:
    """Steps in a row, each with an outlier, that are left out."""

    first_step: int
    """The first step that is left out."""
    step: int
    """The last step, at which the spike was found."""
    first_position: int
    """The position of the data before the first step."""
    end_position: int
    """The position after the last step."""
    outliers: tuple[Outlier, ...]
    """The outliers of the last step."""


class SpikeSteps:
    """Counts steps in a row that have an outlier, and remembers the positions before them."""

    def __init__(self, patience: int, before: int) -> None:
        """
        Args:
            patience: number of steps in a row that need an outlier; one that is not finite is
                enough by itself.
            before: number of earlier steps that are left out, too.
        """
        self._patience, self._before = patience, before
        self._begun = deque[tuple[int, int]](maxlen=patience + before)
        self._count = 0

    @property
    def saved(self) -> dict[str, Any]:
        """The number of outliers in a row, and the steps and positions that a spike may begin with,
        as JSON values."""
        return {"outliers": self._count, "begun": [[*each] for each in self._begun]}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Continue where `saved` was; with fewer steps, if patience is less now."""
        self._begun.clear()
        self._begun.extend((int(step), int(position)) for step, position in saved["begun"])
        self._count = min(int(saved["outliers"]), len(self._begun))

    def update(
        self, step: int, positions: tuple[int, int], outliers: tuple[Outlier, ...]
    ) -> Spike | None:
        """Return the spike that is found with step `step`, if one is.

        Args:
            positions: the positions of the data before and after the step.
            outliers: the outliers of the step.
        """
        self._begun.append((step, positions[0]))
        self._count = self._count + 1 if outliers else 0
        is_over = any(outlier.is_final for outlier in outliers)
        if not outliers or (self._count < self._patience and not is_over):
            return None
        left_out = min(self._count + self._before, len(self._begun))
        first_step, first_position = self._begun[-left_out]
        return Spike(first_step, step, first_position, positions[1], outliers)


class Rollback(NamedTuple):
    """A rollback that a run has made."""

    step: int
    """The step at which its spike was found."""
    first: int
    """The first position that is left out since."""
    end: int
    """The position after the last one."""
    resumed: int = -1
    """The step from which the run has continued; -1: it has not yet."""


def rollbacks(events: Iterable[Event]) -> list[Rollback]:
    """Return the rollbacks of a run, by its events in the order of time."""
    found: list[Rollback] = []
    for event in events:
        if isinstance(event, SpikeFound) and event.is_left_out:
            found.append(Rollback(event.step, event.first_position, event.end_position))
        elif isinstance(event, TrainingStarted):
            found = [one if one.resumed >= 0 else one._replace(resumed=event.step) for one in found]
    return found


def left_behind(made: Sequence[Rollback], step: int, known: int) -> Rollback | None:
    """Return the rollback that has left a state behind, as it went back to one before that; None:
    no one has.

    Args:
        made: all rollbacks of the run, in their order.
        step: the step of the state.
        known: number of them that were made when the state was saved.
    """
    return next((one for one in made[known:] if 0 <= one.resumed < step), None)


def is_one_too_many(made: Iterable[Rollback], step: int, most: int, within: int) -> bool:
    """Return whether `most` rollbacks were made already within so many steps of `step`."""
    return sum(abs(step - one.step) < within for one in made) >= most


def trained_on(made: Iterable[Rollback], position: int, skipped: SkippedRanges) -> Rollback | None:
    """Return the first rollback of which a state has seen samples that are left out since; None: of
    no one.

    Args:
        position: the position of the state's loader.
        skipped: what its loader has left out.
    """
    for one in made:
        last = min(one.end, position)
        if one.first < last and skipped.kept_before(last) > skipped.kept_before(one.first):
            return one
    return None
