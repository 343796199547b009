"""The rollbacks that a run has made after spikes: what they left out stays out, and what they left
behind is not used again, also where spikes are not looked for any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data import DataError, Loader
from hpckit.events.earlier_events import EarlierEvents
from hpckit.trainer.batches.step_source import StepSource
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.parallel.collectives import rows_of_rank_0
from hpckit.trainer.spikes.rollback_plan import Rollback, left_behind, rollbacks, trained_on


class PastRollbacks:
    """The rollbacks of earlier attempts, applied to the loader of this one."""

    def __init__(self, earlier: EarlierEvents, source: StepSource) -> None:
        """Take what rank 0 has read. Collective."""
        rows = rows_of_rank_0(rollbacks(earlier.by_time), len(Rollback._fields))
        self.made = [Rollback(*row) for row in rows]
        """In their order."""
        self._source = source
        self._loader = source.loader if isinstance(source.loader, Loader) else None

    @property
    def is_rolling_back(self) -> bool:
        """Whether this attempt is the one that goes back after a spike."""
        return any(one.resumed < 0 for one in self.made)

    @property
    def saved(self) -> dict[str, int]:
        """What has to be saved with a state, for `problem_of_state`; before the first rollback,
        too, as that one may leave the state behind."""
        return {"rollbacks": len(self.made)}

    def problem_of_state(self, saved: Mapping[str, Any]) -> str | None:
        """Return why the restored state must not be used: it was trained on samples that are left
        out since a spike, or the run went back to an earlier one. None: it may be used.

        Args:
            saved: its step, and its `saved`, which states of earlier versions do not have.
        """
        if self._loader is not None:
            position = self._source.position or 0
            found = trained_on(self.made, position, self._loader.skipped)
            if found is not None:
                return (
                    f"it was trained on the positions {found.first} to {found.end - 1}, which are "
                    f"left out since the spike at step {found.step}"
                )
        known = int(saved.get("rollbacks", len(self.made)))
        found = left_behind(self.made, int(saved["step"]), known)
        return found and (
            f"the run went back to step {found.resumed}, before it, after the spike at step "
            f"{found.step}"
        )

    def leave_out(self) -> str | None:
        """Have the loader leave out the samples of all spikes, once its state is restored. Return
        what it cannot, or which sources end by that; None: nothing is to be said.

        Raises:
            TrainingError: no sample would be left.
        """
        if not self.made:
            return None
        if self._loader is None:
            return (
                f"the samples of {len(self.made)} earlier spikes are not left out any more: "
                f"{self._source.name} has no positions, as data.Loader has"
            )
        for one in self.made:
            try:
                self._loader.skip(one.first, one.end)
            except DataError as error:
                raise TrainingError(
                    f"the samples of the spike at step {one.step}, positions {one.first} to "
                    f"{one.end - 1}, cannot be left out: {error}"
                ) from error
        if ended := self._loader.ended_sources:
            return (
                f"{', '.join(ended)}: all samples are left out after spikes, so the other sources "
                "of the mixture are mixed without it"
            )
        return None
