"""A shorter schedule that fails as well: delta debugging.

Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def minimise(found: Sequence[T], fails: Callable[[Sequence[T]], bool], tries: int) -> list[T]:
    """A part of `found`, which fails, that fails too: in at most so many tries, so not always one
    that no single fault can be taken from. The order stays."""
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
    """`items` without its first, second, ... of so many pieces."""
    cuts = [len(items) * number // pieces for number in range(pieces + 1)]
    return [[*items[:begin], *items[end:]] for begin, end in pairwise(cuts)]
