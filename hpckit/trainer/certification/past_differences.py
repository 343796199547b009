"""The times at which the ranks of a run have computed differently, which decide about its
checkpoints also where nothing is checked any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpckit.events.earlier_events import EarlierEvents
from hpckit.trainer.certification.doubtful_checkpoints import (
    DoubtfulSteps,
    doubtful_steps,
    doubts_about,
)
from hpckit.trainer.parallel.collectives import rows_of_rank_0


class PastDifferences:
    """The differences that earlier attempts have found."""

    def __init__(self, earlier: EarlierEvents) -> None:
        """Take what rank 0 has read. Collective."""
        # as written, as states refer to differences by their number, and rank 0 of an earlier
        # attempt may have had another clock
        rows = rows_of_rank_0(doubtful_steps(earlier.written), len(DoubtfulSteps._fields))
        self._doubtful = [DoubtfulSteps(*row) for row in rows]

    @property
    def saved(self) -> dict[str, int]:
        """What has to be saved with a state, for `problem_of_state`; nothing as long as ranks have
        never computed differently."""
        return {"differences": len(self._doubtful)} if self._doubtful else {}

    def problem_of_state(self, saved: Mapping[str, Any]) -> str | None:
        """Return why a restored state must not be used: ranks may have computed wrongly on the way
        to it. None: it may be used.

        Args:
            saved: its step, and its `saved`.
        """
        known = int(saved.get("differences", 0))
        found = doubts_about(self._doubtful, int(saved["step"]), known)
        return found and (
            f"the ranks computed differently at step {found.step}, and alike at step "
            f"{found.good_step} for the last time"
        )
