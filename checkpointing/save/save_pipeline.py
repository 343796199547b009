"""Saves a rank's states: plans, stages and hands over each, and waits for its outcome."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.optim import Optimizer

from checkpointing.connections import Connections, CurrentGeneration
from checkpointing.errors import CheckpointError, OtherRankError, SaveError
from checkpointing.events import CheckpointStarted, SaveSkipped
from checkpointing.format.object_keys import check_step
from checkpointing.save.commit_wait import wait_together
from checkpointing.save.save_options import SaveOptions, open_shipper
from checkpointing.save.save_outcomes import OutcomeListener, SaveStatus
from checkpointing.save.save_plan import Planner, SavePlan
from checkpointing.save.save_preparation import Preparer
from checkpointing.save.save_schedule import SaveSchedule
from checkpointing.save.shipper import SaveRequest
from checkpointing.state.collector_pause import collector_paused
from checkpointing.state.item_adapters import optimizers, to_save
from checkpointing.state.tree import Leaves

logger = logging.getLogger("checkpointing")


class SavePipeline:
    """Saves the states of one rank. Its methods are called by all ranks at the same point."""

    def __init__(
        self,
        connections: Connections,
        options: SaveOptions,
        outcomes: OutcomeListener,
        schedule: SaveSchedule,
        generation: CurrentGeneration,
    ) -> None:
        self.stall_s = 0.0  # seconds that training waited in the last `save`
        self.may_hold_unsaved = True
        """Whether the service may hold a snapshot that exists nowhere else."""
        self._ranks, self._client = connections.ranks, connections.client
        self._events = connections.events
        self._options, self._outcomes = options, outcomes
        self._schedule, self._generation = schedule, generation
        self.planner = Planner(self._ranks, options.check)
        self.shipper = open_shipper(options, connections, outcomes)
        self.preparer = Preparer(connections, self.planner, self.shipper, options.differing)
        self._saves = 0  # number of saves that this object has begun, the same on all ranks
        self._started: set[int] = set()  # steps that were saved or are being saved
        self._newest: int | None = None  # the step of the last save that was begun

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        metrics: Mapping[str, float] | None,
        deadline_s: float | None,
        certified: str = "",
        *,
        is_last: bool = False,
    ) -> None:
        """Start a save; see `Checkpointer.save`."""
        start = partial(self._start, step, state, metrics, deadline_s, certified)
        if is_last:
            self._start_last(step, start)
        else:
            start()

    def save_restored(
        self, request: SaveRequest, slot: int, planned: SavePlan, fingerprints: bytes
    ) -> None:
        """Save a state that was restored from a slot of this node, in which it still lies."""
        self._begin(request.step)
        self.shipper.ship_restored(request, slot, planned, self._generation.value, fingerprints)

    def wait(self) -> None:
        """Block until the newest save is committed or has failed; see `Checkpointer.wait`."""
        self.shipper.settle()
        step = self._newest if self._newest in self._started else None
        try:
            wait_together(self._ranks, self._outcomes, step)
        except SaveError:
            if step is not None:
                # on all ranks, so that all of them may save this step again
                self._started.discard(step)
            raise
        self.may_hold_unsaved = self.may_hold_unsaved and step is None

    def forget_saves(self) -> None:
        """Forget all saves so far, because training has returned to an earlier step and may save
        later ones again."""
        self._outcomes.clear()
        self._started.clear()

    def note_restored(self) -> None:
        """Record that the restored state is durable, unless it was saved again."""
        self.may_hold_unsaved = bool(self._started)

    def _start_last(self, step: int, start: Callable[[], None]) -> None:
        """Start the save after which none follows. Where a slot is free, the state is in it before
        anything is waited for, because this process may have to end soon."""
        if self._is_on_any_rank(step, step in self._started):
            self._finish_earlier()
        self._start_together(start)
        if self._is_on_any_rank(step, self._outcomes.of(step).fate is SaveStatus.GONE):
            self._finish_earlier()
            self._start_together(start)

    def _start_together(self, start: Callable[[], None]) -> None:
        """Start a save after which the ranks agree; a rank that fails must not leave the others
        waiting for it."""
        if self.shipper.is_bucketed:  # then starting is a collective itself
            start()
        else:
            self._ranks.all_or_none(start)

    def _is_on_any_rank(self, step: int, is_here: bool) -> bool:
        try:
            return any(self._ranks.all_gather(is_here, self._ranks.control))
        except OtherRankError as error:
            raise SaveError(f"saving step {step}: {error}") from error

    def _start(
        self,
        step: int,
        state: Mapping[str, Any],
        metrics: Mapping[str, float] | None,
        deadline_s: float | None,
        certified: str,
    ) -> None:
        started_s = time.monotonic()
        if check_step(step) < (newest := max(self._started, default=step)):
            raise ValueError(
                f"cannot save step {step} after step {newest}: give the number of all optimizer "
                "steps of the run, not of an epoch; only restore returns to an earlier step"
            )
        if step in self._started:
            return
        numbers = {key: _number(key, value) for key, value in (metrics or {}).items()}
        if self._options.max_unsaved is not None and self._started:
            self._outcomes.check_age(self._options.max_unsaved)
        self.shipper.settle()
        with collector_paused():
            leaves, stepped = to_save(state), optimizers(state)
        planned = self._prepared(step, leaves, stepped)
        self._begin(step)
        self._events.emit(CheckpointStarted(step=step))
        is_compared = self._options.check.is_due(self._saves)
        self._saves += 1
        request = SaveRequest(
            step,
            leaves.values,
            numbers,
            time.time(),
            started_s,
            deadline_s,
            is_compared,
            certified,
        )
        try:
            self._ship(request, planned, leaves)
        except BaseException as error:  # most often KeyboardInterrupt
            self.shipper.fail(step, error)
            self._started.discard(step)
            raise
        self.stall_s = time.monotonic() - started_s

    def _finish_earlier(self) -> None:
        """Wait for the newest save: then a slot is free, and a step that is not durable may be
        saved again."""
        try:
            self.wait()
        except SaveError as error:
            logger.warning("an earlier save failed, and the last one is made now: %s", error)

    def _prepared(self, step: int, leaves: Leaves, stepped: list[Optimizer]) -> SavePlan:
        try:
            return self.preparer.ready(leaves, stepped)
        except CheckpointError:
            self._client.unstaged(step)
            raise

    def _begin(self, step: int) -> None:
        self._outcomes.begin(step)
        self._started.add(step)
        self._newest = step
        self.may_hold_unsaved = True
        self._schedule.note_saved(step)

    def _ship(self, request: SaveRequest, planned: SavePlan, leaves: Leaves) -> None:
        claim = self.shipper.claim(request.step, planned)
        why_not = self.shipper.ship(request, claim, planned, leaves, self._generation.value)
        if why_not is not None:
            self._outcomes.end(request.step, SaveStatus.GONE, why_not)
            self._events.emit(SaveSkipped(step=request.step, reason=why_not))


def _number(name: str, value: object) -> float:
    """Returns a metric as a number; tensors of one element are numbers, too."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"metrics: {name} must be a number, got {value!r}") from None
