"""Ranges of positions that are left out of a stream: pure, and the same on any number of ranks.

A position keeps its sample whatever is left out, so what was delivered before and what comes later
does not depend on when a range was added. A position is one of `Order`, or a cursor of
`SequencePacker`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from data.order.keyed_permutation import Ints

MOST_RANGES = 1000
"""The most ranges, so that the state of a loader stays small."""
_LAST_POSITION = 2**62  # as of `sample_order`, which takes longer to import


class SkippedRanges:
    """The positions of some ranges [first, end), which a loader never delivers.

    Ranges that touch or overlap are merged. Raises ValueError for a range that is empty or outside
    of 0..2**62, and for more than `MOST_RANGES`.
    """

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self.ranges = _merged(ranges)
        """The ranges in order, none of which touches the next one."""
        self._firsts = [first for first, _ in self.ranges]
        self._lengths = [0]  # of the ranges before each one, in sum
        for first, end in self.ranges:
            self._lengths.append(self._lengths[-1] + end - first)
        # of the positions that are kept, the numbers that begin after each range
        self._begins = [first - self._lengths[at] for at, first in enumerate(self._firsts)]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SkippedRanges) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __repr__(self) -> str:
        return f"SkippedRanges({list(self.ranges)})"

    @classmethod
    def of_state(cls, saved: object) -> SkippedRanges:
        """Return the ranges that `to_state` returned. Raises ValueError for anything else."""
        if not isinstance(saved, list | tuple) or not all(
            isinstance(each, list | tuple)
            and len(each) == 2
            and all(type(number) is int for number in each)
            for each in saved
        ):
            raise ValueError(f"skipped has to be a list of pairs of positions, got {saved!r}")
        return cls(saved)

    def to_state(self) -> list[list[int]]:
        """Return the ranges as JSON values."""
        return [list(each) for each in self.ranges]

    def with_range(self, first: int, end: int) -> SkippedRanges:
        """Return these ranges and [first, end). Raises ValueError as the class."""
        return SkippedRanges([*self.ranges, (first, end)])

    def kept_before(self, position: int) -> int:
        """Return how many positions below `position` are kept."""
        at = bisect_right(self._firsts, position)
        if at == 0:
            return position
        end = self.ranges[at - 1][1]
        return position - self._lengths[at] + max(0, end - position)

    def kept_at(self, numbers: Ints) -> Ints:
        """Return the position of each kept position by its number, counted from 0; shape (n,)."""
        if not self.ranges:
            return numbers
        import numpy as np  # reports need none of it

        at = np.searchsorted(np.array(self._begins), numbers, side="right")
        positions: Ints = numbers + np.array(self._lengths)[at]
        return positions

    def later(self, position: int, count: int) -> int:
        """Return the position before which `count` more positions are kept than before `position`;
        `count` may be negative."""
        number = self.kept_before(position) + count
        return number + self._lengths[bisect_right(self._begins, number)]

    def next_kept(self, position: int) -> int:
        """Return the first kept position from `position` on."""
        at = bisect_right(self._firsts, position)
        return max(position, self.ranges[at - 1][1]) if at else position

    def next_skipped(self, position: int) -> int | None:
        """Return the first position of the next range that begins after `position`; None: there is
        none."""
        at = bisect_right(self._firsts, position)
        return self._firsts[at] if at < len(self._firsts) else None


def _merged(ranges: Iterable[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, end in sorted((int(first), int(end)) for first, end in ranges):
        if not 0 <= first < end <= _LAST_POSITION:
            raise ValueError(f"a range of positions has to be in 0..2**62, got {first}..{end}")
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    if len(merged) > MOST_RANGES:
        raise ValueError(f"{len(merged)} ranges are left out, at most {MOST_RANGES} can be")
    return tuple(merged)


NOTHING_SKIPPED = SkippedRanges()
