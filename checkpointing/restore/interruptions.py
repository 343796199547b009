"""How often a run was interrupted so far, as its checkpoints tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Interruptions:
    """What a run came through."""

    failures: int = 0  # starts after the first
    trained_s: float = 0.0  # in which they came: of each start, between its first and last save


def interruptions(saves: Iterable[tuple[str, float]]) -> Interruptions:
    """A pure function of the checkpoints that are there. What was pruned is missing: the time is a
    lower bound, and so is the count.

    Args:
        saves: session and Unix time of each.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for session, created in saves:
        times[session].append(created)
    trained_s = sum(max(mine) - min(mine) for mine in times.values())
    return Interruptions(max(len(times) - 1, 0), trained_s)
