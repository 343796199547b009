"""When to save: pure functions of the step and the clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Steps:
    """Save each time a multiple of `n` steps was reached since the last save."""

    n: int
    uses_clock: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise ValueError(f"Steps(n) needs a whole number n >= 1, got {self.n!r}")

    def due(
        self, step: int, last_step: int | None, now_s: float, last_save_s: float | None
    ) -> bool:
        """True from the first multiple of `n` after `last_step` (None: nothing saved yet) on."""
        return step // self.n > (last_step or 0) // self.n

    def __or__(self, other: SavePolicy) -> AnyOf:
        return AnyOf((self, other))


@dataclass(frozen=True)
class Minutes:
    """Save when `m` minutes have passed since the last save was started."""

    m: float
    uses_clock: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.m, bool) or not isinstance(self.m, int | float):
            raise ValueError(f"Minutes(m) needs a number m > 0, got {self.m!r}")
        if not (self.m > 0 and math.isfinite(self.m)):
            raise ValueError(f"Minutes(m) needs a number m > 0, got {self.m!r}")

    def due(
        self, step: int, last_step: int | None, now_s: float, last_save_s: float | None
    ) -> bool:
        """Times in seconds on one and the same clock; `last_save_s` None means no save yet."""
        return last_save_s is None or now_s - last_save_s >= 60 * self.m

    def __or__(self, other: SavePolicy) -> AnyOf:
        return AnyOf((self, other))


@dataclass(frozen=True)
class AnyOf:
    """Save when any of the policies says so: `Minutes(10) | Steps(50)`."""

    policies: tuple[SavePolicy, ...]

    @property
    def uses_clock(self) -> bool:
        return any(policy.uses_clock for policy in self.policies)

    def due(
        self, step: int, last_step: int | None, now_s: float, last_save_s: float | None
    ) -> bool:
        return any(p.due(step, last_step, now_s, last_save_s) for p in self.policies)

    def __or__(self, other: SavePolicy) -> AnyOf:
        return AnyOf((*self.policies, other))


SavePolicy = Steps | Minutes | AnyOf
