"""Estimates from a run's checkpoints how often the run was interrupted so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Interruptions:
    """The interruptions of a run."""

    failures: int = 0  # number of starts after the first
    # seconds of training in which they happened: for each start, from its first to its last save
    trained_s: float = 0.0


def interruptions(saves: Iterable[tuple[str, float]]) -> Interruptions:
    """Count the interruptions from the checkpoints that exist; a pure function. Pruned checkpoints
    are missing, so the time and the count are lower bounds.

    Args:
        saves: session and Unix time of each checkpoint.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for session, created in saves:
        times[session].append(created)
    trained_s = sum(max(mine) - min(mine) for mine in times.values())
    return Interruptions(max(len(times) - 1, 0), trained_s)
