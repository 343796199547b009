"""What a slowdown of a rank has cost the job, by the records of its steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hpckit.events.schema import Event, StepLogged


@dataclass(frozen=True)
class SlowdownEffect:
    """The median seconds of a step before and during a slowdown."""

    before_s: float
    during_s: float
    records: int
    """Number of records of steps during the slowdown."""

    @property
    def percent(self) -> float:
        """How much longer steps took, in percent."""
        return 100.0 * (self.during_s / self.before_s - 1.0)

    def __str__(self) -> str:
        return (
            f"{self.before_s:.3g} s before, {self.during_s:.3g} s meanwhile ({self.percent:+.1f} %,"
            f" medians, {self.records} records meanwhile)"
        )


def slowdown_effect(events: Sequence[Event], seconds: float) -> SlowdownEffect | None:
    """Return the effect of a slowdown of so many seconds that has just ended, compared with as many
    seconds before; None: too few steps were recorded for it.

    Times are those of the records alone, as the clock of the drill may differ. The first record
    during the slowdown is left out, as it may be of steps before.

    Args:
        events: of the run, until now.
    """
    steps = [event for event in events if isinstance(event, StepLogged)]
    begin_s = steps[-1].time - seconds if steps else 0.0
    old = [step.step_s for step in steps if begin_s - seconds <= step.time < begin_s]
    new = [step.step_s for step in steps if step.time >= begin_s][1:]
    if not old or not new or not median(old):
        return None
    return SlowdownEffect(median(old), median(new), len(new))
