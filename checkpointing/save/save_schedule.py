"""Decides on all ranks together whether a save is due, from the save policy, the cost of the last
saves and the interruptions of the run so far."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from checkpointing.ranks.lagged_agreement import LaggedVote
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.save_policy import SavePolicy, SaveSituation


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


class SaveSchedule:
    """Decides when to save."""

    def __init__(self, policy: SavePolicy | None, ranks: RankGroup) -> None:
        """
        Args:
            policy: None: never.
        """
        self._policy, self._vote = policy, LaggedVote(ranks.control)
        self._last_step: int | None = None  # of the last save or restore
        self._last_save_s = self._made_s = time.monotonic()
        self._interruptions = Interruptions()

    def due(self, step: int, *, stall_s: float, durable_s: float) -> bool:
        """Returns whether to save at `step`; the answer is the same on every rank.

        Args:
            stall_s: seconds that training waited for the last save.
            durable_s: seconds from the start of a save to its commit, as last measured.
        """
        if self._policy is None:
            return False
        now_s = time.monotonic()
        situation = SaveSituation(
            step,
            self._last_step,
            now_s,
            self._last_save_s,
            stall_s=stall_s,
            durable_s=durable_s,
            failures=self._interruptions.failures,
            trained_s=self._interruptions.trained_s + now_s - self._made_s,
        )
        is_due = self._policy.due(situation)
        return self._vote(is_due) if self._policy.uses_clock else is_due

    def note_interruptions(self, interrupted: Interruptions) -> None:
        """Count these interruptions of the run, which its checkpoints have shown."""
        self._interruptions = interrupted

    def note_saved(self, step: int) -> None:
        """Count from this step and this moment on: a save of it was started, or it was restored."""
        self._last_step, self._last_save_s = step, time.monotonic()
        self._vote.void()
