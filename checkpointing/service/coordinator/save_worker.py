"""The thread that saves: which save is next, and what becomes of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from checkpointing.errors import CheckpointError, StoreError
from checkpointing.service.coordinator.save_coordinator import SaveAttempt, SaveCoordinator
from checkpointing.service.coordinator.save_leader import (
    ImpossibleSaveError,
    LeaderMovedError,
    RunTakenOverError,
)
from checkpointing.service.registry.generation_state import GenerationState
from checkpointing.service.registry.slot_choice import SlotState
from checkpointing.service.registry.snapshot_registry import SnapshotRegistry
from checkpointing.service.snapshots import Generation
from checkpointing.service.spool.spooler import Spooler, created

logger = logging.getLogger("checkpointing")


class SaveWorker:
    """Saves what waits in the hall, one step after another, the newest first."""

    def __init__(
        self,
        hall: SnapshotRegistry,
        opened: Callable[[], SaveCoordinator],
        linger_s: float,
        spooler: Spooler | None = None,
    ) -> None:
        """
        Args:
            opened: the store, opened if it is not yet; raises StoreError.
            linger_s: how long snapshots of trainers that are gone wait for another node to lead.
            spooler: what has a deadline that the store may miss is copied by it first.
        """
        self._hall, self._opened, self._linger_s = hall, opened, linger_s
        self._spooler = spooler
        self.now: SaveAttempt | None = None  # what is being saved
        self._pending: dict[Generation, SaveAttempt] = {}  # to be gone on with after a failure
        self._rounds: SaveCoordinator | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended, at the latest after so long."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (course := self._hall.next_course()) is not None:
            try:
                self._step(course)
            except Exception as error:
                # a bug must cost this step, and not all that come
                logger.exception("saving step %s", self._step_of(course))
                self._broke(course, error)
        if self._rounds is not None:
            self._rounds.close()

    def _step(self, course: GenerationState) -> None:
        try:
            self._rounds = rounds = self._opened()
            round_ = self._next_round(course, rounds)
        except CheckpointError as error:
            self._failed(course, None, error)
            return
        if round_ is not None:
            self._carry_out(course, round_, rounds)

    def _next_round(self, course: GenerationState, rounds: SaveCoordinator) -> SaveAttempt | None:
        """The next save: one that failed half-way, or one that this node or the leading one
        announces; None if there is none yet."""
        wanted = self._hall.wanted(course)
        pending = self._pending.get(course.generation)
        if pending is not None:
            if wanted and wanted[-1] > pending.save.step and course.leads:
                rounds.give_up(pending)
                del self._pending[course.generation]
            else:
                return self._pending.pop(course.generation)
        if course.epoch is None:
            rounds.meet(course.generation)
            course.epoch = rounds.last_epoch(course.generation)
            if self._has_missed(course, rounds, course.epoch):
                return None
        if course.leads:
            if not wanted:
                return None
            self._hall.begin(course, wanted[-1])
            return rounds.lead(course.generation, course.ranks, wanted[-1], course.term)
        found = rounds.follow(course.generation, course.ranks, course.epoch)
        if found is not None and course.is_new(found.save):
            course.epoch = found.epoch
            self._hall.begin(course, found.save.step)
            return found
        if not self._has_missed(course, rounds, course.epoch):
            self._wait(course, is_needed=bool(wanted))
        return None

    def _has_missed(self, course: GenerationState, rounds: SaveCoordinator, epoch: int) -> bool:
        """Whether a step was committed while this process was not there."""
        missed = rounds.missed(course.generation, epoch)
        if missed is None or missed.save.step <= course.settled:
            return False
        step, id_ = missed.save.step, missed.save.id
        if self._hall.is_awaited(course, step):
            rounds.remember(missed.save, time.time(), 0)
            self._hall.tell(course.generation, "committed", step=step, id=id_)
        else:
            self._hall.note(course, step=step, id=id_)
        self._settled(course, step)
        if course.leads:
            rounds.take_back(course.generation, missed.save, course.term)
        return True

    def _settled(self, course: GenerationState, step: int) -> None:
        saved = created(self._hall, course.generation, step)
        self._hall.settled(course, step)
        if self._spooler is not None:
            self._spooler.durable(course.generation, step, saved)

    def _wait(self, course: GenerationState, *, is_needed: bool) -> None:
        """For the other node to announce, as long as it may."""
        alone_s = min(self._hall.alone_s(), time.monotonic() - course.heard_s)
        if is_needed and (alone_s > self._linger_s or 0 in self._hall.lost_ranks):
            steps = self._hall.lose(course)
            logger.error("steps %s are lost: the node with rank 0 saves no more", steps)
        else:
            self._hall.later(course, course.poll)

    def _carry_out(
        self, course: GenerationState, round_: SaveAttempt, rounds: SaveCoordinator
    ) -> None:
        self.now = round_
        try:
            if self._spooler is not None:
                self._spooler.consider()
            rounds.carry_out(round_)
        except LeaderMovedError as error:
            logger.info("%s", error)
            course.epoch = None  # look what was committed meanwhile
            self._hall.later(course, course.at_once)
            self._hall.set_state(course, round_.save.step, SlotState.WAITING)
        except CheckpointError as error:
            self._failed(course, round_, error)
        except Exception:
            self._abandon(round_)
            raise
        else:
            self._settled(course, round_.save.step)
            self.now = None
            self._prune(round_, rounds)
        finally:
            self.now = None
            self._hall.look_again()

    def _failed(
        self, course: GenerationState, round_: SaveAttempt | None, error: CheckpointError
    ) -> None:
        step = round_.save.step if round_ else self._step_of(course)
        logger.error("saving step %s: %s; earlier checkpoints are untouched", step, error)
        self._hall.later(course, course.at_once if _is_hopeless(error) else course.retry)
        if round_ is None and course.saving is not None:
            self._hall.set_state(course, course.saving, SlotState.WAITING)
        if isinstance(error, RunTakenOverError):
            self._hall.lose(course)
        if round_ is not None:
            if isinstance(error, StoreError):
                self._pending[course.generation] = round_
            elif self._abandon(round_):
                course.given_up = round_.save
            else:
                self._hall.later(course, course.retry)
            state = SlotState.LOST if _is_hopeless(error) else SlotState.WAITING
            self._hall.set_state(course, round_.save.step, state, str(error))
        self._hall.failed(course, step, str(error))

    def _abandon(self, round_: SaveAttempt) -> bool:
        assert self._rounds is not None
        try:
            self._rounds.give_up(round_)
        except CheckpointError as error:
            logger.warning("%s stays announced until its lease is over: %s", round_.save.id, error)
            return False
        return True

    def _broke(self, course: GenerationState, error: Exception) -> None:
        """What nobody has foreseen: the step is not tried again."""
        step = self._step_of(course)
        self._pending.pop(course.generation, None)
        self._hall.later(course, course.retry)
        if step is not None:
            self._hall.set_state(course, step, SlotState.LOST, f"{type(error).__name__}: {error}")
        self._hall.failed(course, step, f"{type(error).__name__}: {error}")

    def _prune(self, round_: SaveAttempt, rounds: SaveCoordinator) -> None:
        if self._hall.is_draining:
            return
        try:
            rounds.prune(round_)
        except Exception:
            # the checkpoint is there all the same
            logger.exception("pruning after %s", round_.save.id)

    def _step_of(self, course: GenerationState) -> int | None:
        """The one that is being saved, or would be next."""
        if course.saving is not None:
            return course.saving
        return max(self._hall.wanted(course), default=None)


def _is_hopeless(error: CheckpointError) -> bool:
    return isinstance(error, ImpossibleSaveError)
