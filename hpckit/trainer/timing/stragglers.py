"""Detection of ranks that the others wait for, from the time that each works by itself. Pure."""

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
"""Number of consecutive judgements that have to agree before a straggler is reported or cleared."""

_NOISE = 0.01  # of the median: ranks that differ by less are alike
_FEWEST = 3  # of two that differ, either may be the one to blame
_NORMAL = 1.4826  # standard deviation of a normal distribution over its median deviation


@dataclass(frozen=True)
class SlowRank:
    """A rank that works longer than the others."""

    rank: int
    z: float
    excess: float
    """The excess as a share of the median of its group."""


def slow_ranks(own_s: Sequence[float], groups: Sequence[int]) -> dict[int, SlowRank]:
    """Return the outliers among the ranks, by rank, with the modified z-score, whose median and
    median deviation an outlier does not move.

    Args:
        own_s: seconds that each rank worked in a step, without those in which it did nothing but
            wait for others; NaN: not known.
        groups: those with the same number have the same work, and are compared.
    """
    found = {}
    for group in set(groups):
        known = {r: own_s[r] for r, g in enumerate(groups) if g == group and own_s[r] == own_s[r]}
        if len(known) < _FEWEST:
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
    """Tracks ranks that are slow in several judgements in a row."""

    def __init__(self) -> None:
        self._slow: Counter[int] = Counter()  # judgements in a row
        self._well: Counter[int] = Counter()
        self.known: set[int] = set()

    def judge(self, slow: Mapping[int, SlowRank]) -> tuple[list[SlowRank], list[int]]:
        """Return the ranks that have become stragglers with this judgement, and those that no
        longer are."""
        self._slow = Counter({rank: self._slow[rank] + 1 for rank in slow})
        self._well = Counter({r: self._well[r] + 1 for r in self.known if r not in slow})
        new = [it for rank, it in sorted(slow.items()) if self._is_new(rank)]
        over = sorted(rank for rank, count in self._well.items() if count >= IN_A_ROW)
        self.known = (self.known | {it.rank for it in new}) - set(over)
        return new, over

    def _is_new(self, rank: int) -> bool:
        return rank not in self.known and self._slow[rank] >= IN_A_ROW
