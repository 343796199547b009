"""The step of a run's newest checkpoint, as its supervisor knows it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from checkpointing import CheckpointError
from checkpointing.events import CheckpointCommitted
from hpckit.config.spec import RunSpec
from hpckit.events.checkpoints_left_behind import choices
from hpckit.events.earlier_events import ids_left_behind
from hpckit.events.event_log import Event, EventLog, EventTail
from hpckit.events.schema import CheckpointReported, Degraded, DegradedSubject, StepLogged
from hpckit.rundir.directory import RunDir, checkpoint_root, run_name

log = logging.getLogger(__name__)


UNREPORTED_PROGRESS_S = 1800.0
"""Seconds that a program has to run to have made progress, if it never reports a step or a
checkpoint."""


class SavedStep:
    """The step of the newest checkpoint, which is looked up again after each generation.

    A store that cannot be reached for a while does not end the run: the last known step is kept,
    and no progress is counted.
    """

    def __init__(
        self, spec: RunSpec, run: RunDir, events: EventLog, written: Iterable[Event]
    ) -> None:
        """Looks up the step for the first time.

        Args:
            written: events of the run, which are used if the store does not answer.
        """
        self._spec, self._run, self._events = spec, run, events
        self._is_known = False  # whether the step comes from the store, and not from events
        self._tail = EventTail(run.events)
        self._is_progress_reported = False
        self.step = saved_step_of(written)
        """The step; 0: there is no checkpoint."""
        self._looked_s = time.monotonic()
        self._look(None)

    def update(self, generation: int) -> bool:
        """Looks up the step again; returns whether there is a newer checkpoint than the last
        time."""
        before, was_known, begun_s = self.step, self._is_known, self._looked_s
        self._look(generation)
        if self._spec.command is not None and not self._is_progress_reported:
            return self._looked_s - begun_s > UNREPORTED_PROGRESS_S
        return was_known and self.step > before

    def _look(self, generation: int | None) -> None:
        self._looked_s = time.monotonic()
        if self._spec.command is not None:
            self._look_at_events()
            return
        try:
            self.step = newest_step(self._spec, self._run)
            self._is_known = True
        except (CheckpointError, OSError) as error:
            what = f"cannot list the checkpoints: {error}"
            log.warning(what)
            self._events.emit(
                Degraded(subject=DegradedSubject.CHECKPOINT_STORE, generation=generation, what=what)
            )

    def _look_at_events(self) -> None:
        """Looks up what a program has reported, as only the program knows its checkpoints."""
        for event in self._tail.read():
            saved = _saved_step(event)
            self._is_progress_reported |= saved > 0 or isinstance(event, StepLogged)
            self.step = max(self.step, saved)
        self._is_known = True


def saved_step_of(events: Iterable[Event]) -> int:
    """Returns the step of the newest checkpoint by the run's events, or 0 if there is none."""
    return max(map(_saved_step, events), default=0)


def _saved_step(event: Event) -> int:
    """Returns the step of the checkpoint that an event reports, or 0."""
    match event:
        case CheckpointCommitted() | CheckpointReported():
            return event.step
    return 0


def newest_step(spec: RunSpec, run: RunDir) -> int:
    """Returns the step of the checkpoint that the run would continue from, or 0 if there is none.

    Raises:
        CheckpointError: the store cannot be reached, or is damaged.
    """
    from checkpointing import list_run  # imports numpy, which few commands need

    found = list_run(checkpoint_root(spec, run), run_name(spec))
    committed = [info for info in found if info.state == "committed"]
    whole = choices(committed, None, ids_left_behind(run))
    good = [info for info in whole if not info.is_suspect]
    return max((info.step for info in good or whole), default=0)
