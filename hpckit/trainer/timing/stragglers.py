"""The detection of ranks for which others wait, from the time that each rank works. These functions
are pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

Z = 3.5
"""Modified z-score above which a value is an outlier (Iglewicz & Hoaglin 1993)."""
MATTERS = 0.05
"""Share of the median by which a rank has to be slower to be reported."""
IN_A_ROW = 3
"""Number of consecutive traces that have to agree before a straggler is reported or cleared."""

FEWEST = 3
"""Least number of ranks in a group; of two that differ, either may be the unusual one."""

_NOISE = 0.01  # share of the median by which equal ranks may differ
_NORMAL = 1.4826  # ratio of the standard deviation of a normal distribution to its median deviation


@dataclass(frozen=True)
class SlowRank:
    """A rank that works longer than the others."""

    rank: int
    z: float
    excess: float
    """How much longer the rank works than the median of its group, as a share of the median."""


def slow_ranks(own_s: Sequence[float], groups: Sequence[int]) -> dict[int, SlowRank]:
    """Return the ranks that are slow outliers by the modified z-score, whose median and median
    deviation do not depend on outliers.

    Args:
        own_s: seconds that each rank worked in a step, without those in which it only waited for
            others; NaN if they are not known.
        groups: the group of each rank; ranks of one group have the same amount of computation, and
            are compared.
    """
    found = {}
    for group in set(groups):
        known = {r: own_s[r] for r, g in enumerate(groups) if g == group and own_s[r] == own_s[r]}
        if len(known) < FEWEST:
            continue
        middle = median(known.values())
        spread = _NORMAL * median(abs(value - middle) for value in known.values())
        scale = max(spread, _NOISE * middle, math.ulp(0.0))
        for rank, value in known.items():
            z = (value - middle) / scale
            if z > Z and value > (1 + MATTERS) * middle:
                excess = value / middle - 1 if middle else math.inf
                found[rank] = SlowRank(rank, z, excess)
    return found


class Stragglers:
    """Tracks which ranks are slow in several consecutive traces."""

    def __init__(self) -> None:
        self._slow: Counter[int] = Counter()  # numbers of consecutive traces
        self._well: Counter[int] = Counter()
        self.known: set[int] = set()

    def judge(self, slow: Mapping[int, SlowRank]) -> tuple[list[SlowRank], list[int]]:
        """Return the ranks that have become stragglers with this trace, and those that no longer
        are."""
        self._slow = Counter({rank: self._slow[rank] + 1 for rank in slow})
        self._well = Counter({r: self._well[r] + 1 for r in self.known if r not in slow})
        new = [it for rank, it in sorted(slow.items()) if self._is_new(rank)]
        over = sorted(rank for rank, count in self._well.items() if count >= IN_A_ROW)
        self.known = (self.known | {it.rank for it in new}) - set(over)
        return new, over

    def _is_new(self, rank: int) -> bool:
        return rank not in self.known and self._slow[rank] >= IN_A_ROW
