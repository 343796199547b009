"""The thread that saves: chooses the next save and handles its outcome."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from checkpointing.errors import CheckpointError, StoreError
from checkpointing.service.coordinator.save_coordinator import SaveAttempt, SaveCoordinator
from checkpointing.service.registry.generation_state import GenerationState
from checkpointing.service.registry.slot_choice import SlotState
from checkpointing.service.registry.snapshot_registry import SnapshotRegistry
from checkpointing.service.save_errors import (
    ImpossibleSaveError,
    LeaderMovedError,
    RunTakenOverError,
)
from checkpointing.service.snapshots import Generation
from checkpointing.service.spool.spooler import Spooler, created

logger = logging.getLogger("checkpointing")


class SaveWorker:
    """Saves the snapshots that wait in the registry, one step after another, the newest first."""

    def __init__(
        self,
        registry: SnapshotRegistry,
        opened: Callable[[], SaveCoordinator],
        linger_s: float,
        spooler: Spooler | None = None,
    ) -> None:
        """Create the thread, which `start` starts.

        Args:
            opened: returns the coordinator of the store, which is opened if it is not open yet;
                raises StoreError.
            linger_s: seconds that snapshots of trainers that are gone wait for another node to
                lead.
            spooler: copies snapshots first whose deadline the store may miss.
        """
        self._registry, self._opened, self._linger_s = registry, opened, linger_s
        self._spooler = spooler
        self.now: SaveAttempt | None = None  # the save under way
        # save attempts to continue after a failure
        self._pending: dict[Generation, SaveAttempt] = {}
        self._coordinator: SaveCoordinator | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the thread to end; return whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (progress := self._registry.next_generation()) is not None:
            try:
                self._step(progress)
            except Exception as error:
                # an unexpected error must not end the saving of later steps
                logger.exception("step %s cannot be saved now", self._step_of(progress))
                self._handle_error(progress, error)
        if self._coordinator is not None:
            self._coordinator.close()

    def _step(self, progress: GenerationState) -> None:
        try:
            self._coordinator = coordinator = self._opened()
            attempt = self._next_attempt(progress, coordinator)
        except CheckpointError as error:
            self._failed(progress, None, error)
            return
        if attempt is not None:
            self._carry_out(progress, attempt, coordinator)

    def _next_attempt(
        self, progress: GenerationState, coordinator: SaveCoordinator
    ) -> SaveAttempt | None:
        """Return the next save: one that failed half-way, or one that this node or the leader
        announces; None if there is none yet."""
        wanted = self._registry.wanted(progress)
        pending = self._pending.get(progress.generation)
        if pending is not None:
            if wanted and wanted[-1] > pending.save.step and progress.leads:
                coordinator.give_up(pending)
                del self._pending[progress.generation]
            else:
                return self._pending.pop(progress.generation)
        if progress.epoch is None:
            coordinator.meet(progress.generation)
            progress.epoch = coordinator.last_epoch(progress.generation)
            if self._has_missed(progress, coordinator, progress.epoch):
                return None
        if progress.leads:
            if not wanted:
                return None
            self._registry.begin(progress, wanted[-1])
            return coordinator.lead(progress.generation, progress.ranks, wanted[-1], progress.term)
        found = coordinator.follow(progress.generation, progress.ranks, progress.epoch)
        if found is not None and progress.is_new(found.save):
            progress.epoch = found.epoch
            self._registry.begin(progress, found.save.step)
            return found
        if not self._has_missed(progress, coordinator, progress.epoch):
            self._wait(progress, is_needed=bool(wanted))
        return None

    def _has_missed(
        self, progress: GenerationState, coordinator: SaveCoordinator, epoch: int
    ) -> bool:
        """Return whether a step was committed while this process was not running."""
        missed = coordinator.missed(progress.generation, epoch)
        if missed is None or missed.save.step <= progress.settled:
            return False
        step, id_ = missed.save.step, missed.save.id
        if self._registry.is_awaited(progress, step):
            coordinator.remember(missed.save, time.time(), 0)
            self._registry.notify(progress.generation, "committed", step=step, id=id_)
        else:
            self._registry.note(progress, step=step, id=id_)
        self._settled(progress, step)
        if progress.leads:
            coordinator.take_back(progress.generation, missed.save, progress.term)
        return True

    def _settled(self, progress: GenerationState, step: int) -> None:
        saved = created(self._registry, progress.generation, step)
        self._registry.settled(progress, step)
        if self._spooler is not None:
            self._spooler.durable(progress.generation, step, saved)

    def _wait(self, progress: GenerationState, *, is_needed: bool) -> None:
        """Wait for another node to announce a save, for as long as it may."""
        alone_s = min(self._registry.alone_s(), time.monotonic() - progress.last_active_s)
        if is_needed and (alone_s > self._linger_s or 0 in self._registry.lost_ranks):
            steps = self._registry.lose(progress)
            logger.error("steps %s are lost: the node with rank 0 no longer saves", steps)
        else:
            self._registry.later(progress.poll)

    def _carry_out(
        self, progress: GenerationState, attempt: SaveAttempt, coordinator: SaveCoordinator
    ) -> None:
        self.now = attempt
        try:
            if self._spooler is not None:
                self._spooler.consider()
            coordinator.carry_out(attempt)
        except LeaderMovedError as error:
            logger.info("%s", error)
            progress.epoch = None  # look up what was committed meanwhile
            self._registry.later(progress.try_now)
            self._registry.set_state(progress, attempt.save.step, SlotState.WAITING)
        except CheckpointError as error:
            self._failed(progress, attempt, error)
        except Exception:
            self._abandon(attempt)
            raise
        else:
            self._settled(progress, attempt.save.step)
            self.now = None
            self._prune(attempt, coordinator)
        finally:
            self.now = None
            self._registry.look_again()

    def _failed(
        self, progress: GenerationState, attempt: SaveAttempt | None, error: CheckpointError
    ) -> None:
        step = attempt.save.step if attempt else self._step_of(progress)
        logger.error("saving step %s: %s; earlier checkpoints are untouched", step, error)
        self._registry.later(progress.try_now if _is_impossible(error) else progress.retry)
        if attempt is None and progress.saving is not None:
            self._registry.set_state(progress, progress.saving, SlotState.WAITING)
        if isinstance(error, RunTakenOverError):
            self._registry.lose(progress)
        if attempt is not None:
            if isinstance(error, StoreError):
                self._pending[progress.generation] = attempt
            elif self._abandon(attempt):
                progress.given_up = attempt.save
            else:
                self._registry.later(progress.retry)
            state = SlotState.LOST if _is_impossible(error) else SlotState.WAITING
            self._registry.set_state(progress, attempt.save.step, state, str(error))
        self._registry.failed(progress, step, str(error))

    def _abandon(self, attempt: SaveAttempt) -> bool:
        assert self._coordinator is not None
        try:
            self._coordinator.give_up(attempt)
        except CheckpointError as error:
            logger.warning("%s stays announced until its lease expires: %s", attempt.save.id, error)
            return False
        return True

    def _handle_error(self, progress: GenerationState, error: Exception) -> None:
        """Handle an unexpected error: the step is not tried again."""
        step = self._step_of(progress)
        self._pending.pop(progress.generation, None)
        self._registry.later(progress.retry)
        if step is not None:
            self._registry.set_state(
                progress, step, SlotState.LOST, f"{type(error).__name__}: {error}"
            )
        self._registry.failed(progress, step, f"{type(error).__name__}: {error}")

    def _prune(self, attempt: SaveAttempt, coordinator: SaveCoordinator) -> None:
        if self._registry.is_draining:
            return
        try:
            coordinator.prune(attempt)
        except Exception:
            # the checkpoint is committed in any case
            logger.exception("pruning after %s", attempt.save.id)

    def _step_of(self, progress: GenerationState) -> int | None:
        """Return the step that is being saved, or would be saved next."""
        if progress.saving is not None:
            return progress.saving
        return max(self._registry.wanted(progress), default=None)


def _is_impossible(error: CheckpointError) -> bool:
    return isinstance(error, ImpossibleSaveError)
