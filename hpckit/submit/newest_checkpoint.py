"""The newest checkpoint of a run, as its supervisor knows it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from checkpointing import CheckpointError, list_run
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import Event, EventLog
from hpckit.rundir.directory import RunDir, checkpoint_root, run_name

log = logging.getLogger(__name__)


class SavedStep:
    """Its step, look after look.

    A store that is out of reach now is no reason to give up the run: what was known before holds,
    and no progress is counted.
    """

    def __init__(self, spec: RunSpec, run: RunDir, events: EventLog) -> None:
        self._spec, self._run, self._events = spec, run, events
        self._is_known = False  # by the store, and not by what was told of it
        self.now = 0
        """0: there is none."""

    def begin(self, told: Iterable[Event]) -> None:
        """Look for the first time.

        Args:
            told: events of the run, which have to do where the store does not answer.
        """
        saved = (int(event["step"]) for event in told if event.kind == "checkpoint_committed")
        self.now = max(saved, default=0)
        self._look(None)

    def has_grown(self, generation: int) -> bool:
        """Look again: whether there is a newer checkpoint than the time before."""
        before, was_known = self.now, self._is_known
        self._look(generation)
        return was_known and self.now > before

    def _look(self, generation: int | None) -> None:
        try:
            self.now = newest_step(self._spec, self._run)
            self._is_known = True
        except (CheckpointError, OSError) as error:
            what = f"cannot look at the checkpoints: {error}"
            log.warning(what)
            self._events.emit("degraded", generation=generation, what=what)


def newest_step(spec: RunSpec, run: RunDir) -> int:
    """Step of the checkpoint that the run would go on from; 0 where there is none.

    Raises:
        CheckpointError: its store is out of reach, or damaged.
    """
    found = list_run(checkpoint_root(spec, run), run_name(spec))
    whole = [info for info in found if info.state == "committed"]
    good = [info for info in whole if not info.is_suspect]
    return max((info.step for info in good or whole), default=0)
