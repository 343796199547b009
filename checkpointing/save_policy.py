"""Save policies, which decide when to save: pure functions of the step, the clock and the cost of
saves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class SaveSituation:
    """What a save policy decides from. Times are in seconds on one clock."""

    step: int
    last_step: int | None  # step of the last save; None: nothing was saved yet
    now_s: float
    last_save_s: float | None  # when the last save was started; None: nothing was saved yet
    stall_s: float = 0.0  # seconds that the trainer waited in the last save
    durable_s: float = 0.0  # seconds from the start of a save to its commit, as last measured
    failures: int = 0  # failures of the run so far
    trained_s: float = 0.0  # seconds of training in which they happened


@dataclass(frozen=True)
class Steps:
    """Save whenever a multiple of `n` steps was reached since the last save."""

    n: int
    uses_clock: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise ValueError(f"Steps(n) requires a whole number n >= 1, got {self.n!r}")

    def due(self, at: SaveSituation) -> bool:
        """Returns True from the first multiple of `n` after the last save on."""
        return at.step // self.n > (at.last_step or 0) // self.n

    def __or__(self, other: SavePolicy) -> AnyOf:
        return AnyOf((self, other))


@dataclass(frozen=True)
class Minutes:
    """Save when `m` minutes have passed since the last save was started."""

    m: float
    uses_clock: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _need_positive("Minutes(m)", self.m)

    def due(self, at: SaveSituation) -> bool:
        """Returns True at the first step too, if nothing was saved yet."""
        return at.last_save_s is None or at.now_s - at.last_save_s >= 60 * self.m

    def __or__(self, other: SavePolicy) -> AnyOf:
        return AnyOf((self, other))


@dataclass(frozen=True)
class Auto:
    """Save at the interval that minimises the time lost to saves and to repeated steps.

    The interval is sqrt(2 * stall * mtbf) (J. W. Young, Communications of the ACM 17(9), 1974; J.
    T. Daly, Future Generation Computer Systems 22(3), 2006), but at least the time that a save
    takes to become durable, because faster saves are skipped. The stall is the measured one; the
    mean time between failures is `mtbf_s`, corrected by the failures of the run so far, as if one
    failure had been seen in the first `mtbf_s` seconds.

    Attributes:
        mtbf_s: expected mean time between failures of the whole job, seconds.
        at_least_s, at_most_s: bounds of the interval, seconds.
    """

    mtbf_s: float
    at_least_s: float = 10.0
    at_most_s: float = 3600.0
    uses_clock: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _need_positive("Auto(mtbf_s)", self.mtbf_s)
        _need_positive("Auto(at_least_s)", self.at_least_s)
        _need_positive("Auto(at_most_s)", self.at_most_s)
        if self.at_least_s > self.at_most_s:
            raise ValueError(f"Auto: at_least_s {self.at_least_s} > at_most_s {self.at_most_s}")

    def interval_s(self, at: SaveSituation) -> float:
        """Returns the seconds from the start of one save to that of the next."""
        mtbf_s = (self.mtbf_s + at.trained_s) / (1 + at.failures)
        best_s = math.sqrt(2 * at.stall_s * mtbf_s)
        return min(max(best_s, at.durable_s, self.at_least_s), self.at_most_s)

    def due(self, at: SaveSituation) -> bool:
        """Returns True at the first step too, if nothing was saved yet: that save measures the
        cost."""
        return at.last_save_s is None or at.now_s - at.last_save_s >= self.interval_s(at)

    def __or__(self, other: SavePolicy) -> AnyOf:
        return AnyOf((self, other))


@dataclass(frozen=True)
class AnyOf:
    """Save when any of the policies says so: `Minutes(10) | Steps(50)`."""

    policies: tuple[SavePolicy, ...]

    @property
    def uses_clock(self) -> bool:
        return any(policy.uses_clock for policy in self.policies)

    def due(self, at: SaveSituation) -> bool:
        return any(policy.due(at) for policy in self.policies)

    def __or__(self, other: SavePolicy) -> AnyOf:
        return AnyOf((*self.policies, other))


SavePolicy = Steps | Minutes | Auto | AnyOf


def _need_positive(name: str, value: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a number > 0, got {value!r}")
