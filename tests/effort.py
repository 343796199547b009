"""How far the tests go where they could go on for ever: kills, schedules by chance, rounds.

HPCKIT_TEST_EFFORT=10 is ten times as many as usual, as before a release; above 1 the examples of
property tests are new ones each time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
EFFORT = float(os.environ.get("HPCKIT_TEST_EFFORT", "1"))


def times(usual: int) -> int:
    """How often something is done, with an effort of 1."""
    return max(1, round(usual * EFFORT))


def some(usual: Sequence[T], others: Sequence[T]) -> list[T]:
    """Cases that say the most, and with an effort above 1 the others too."""
    return [*usual, *(others if EFFORT > 1 else ())]


def every(usual: int) -> int:
    """Which of a row of cases are tried: each so many-th, with an effort of 1."""
    return max(1, round(usual / EFFORT))
