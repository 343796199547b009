"""Minimizes a failing schedule by delta debugging.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def minimise(found: Sequence[T], fails: Callable[[Sequence[T]], bool], tries: int) -> list[T]:
    """Return a part of `found`, in the same order, that fails as `found` does. The number of tries
    is limited, so the result may not be minimal."""
    left, pieces = list(found), 2
    while len(left) > 1 and pieces <= len(left):
        for part in _without_each(left, pieces):
            if tries == 0:
                return left
            tries -= 1
            if fails(part):
                left, pieces = part, max(pieces - 1, 2)
                break
        else:
            if pieces == len(left):
                break
            pieces = min(2 * pieces, len(left))
    return left


def _without_each(items: Sequence[T], pieces: int) -> list[list[T]]:
    """Yield `items` without the first, second, ... of so many pieces."""
    cuts = [len(items) * number // pieces for number in range(pieces + 1)]
    return [[*items[:begin], *items[end:]] for begin, end in pairwise(cuts)]
