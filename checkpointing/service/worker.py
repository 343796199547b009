"""The thread that saves: which save is next, and what becomes of it."""

from __future__ import annotations

import logging
import threading

from checkpointing.errors import CheckpointError, StoreError
from checkpointing.service.course import Course
from checkpointing.service.hall import Hall
from checkpointing.service.leading import HopelessError
from checkpointing.service.round import Round, Rounds
from checkpointing.service.slots import State

logger = logging.getLogger("checkpointing")


class Worker:
    """Saves what waits in the hall, one step after another, the newest first."""

    def __init__(self, hall: Hall, rounds: Rounds) -> None:
        self._hall, self._rounds = hall, rounds
        self._now: Round | None = None
        self._pending: dict[str, Round] = {}  # by generation: to be gone on with after a failure
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended, at the latest after so long."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def step(self) -> int | None:
        """What is being saved."""
        now = self._now
        return now.save.step if now else None

    def _run(self) -> None:
        while (course := self._hall.next_course()) is not None:
            try:
                round_ = self._next_round(course)
            except CheckpointError as error:
                self._failed(course, None, error)
                continue
            if round_ is not None:
                self._carry_out(course, round_)
        self._rounds.close()

    def _next_round(self, course: Course) -> Round | None:
        """The next save: one that failed half-way, or one that this node or the leading one
        announces; None if there is none yet."""
        wanted = self._hall.wanted(course)
        pending = self._pending.pop(course.generation.id, None)
        if pending is not None:
            if not wanted or wanted[-1] <= pending.save.step or not course.leads:
                return pending
            self._rounds.give_up(pending)
        if not wanted:
            return None
        if course.leads:
            return self._rounds.lead(course.generation, course.ranks, wanted[-1])
        found = self._rounds.follow(course.generation, course.ranks, course.epoch)
        if found is not None and (found.epoch > course.epoch or found.save.step > course.settled):
            course.epoch = found.epoch
            return found
        self._hall.later(course, course.poll)
        return None

    def _carry_out(self, course: Course, round_: Round) -> None:
        self._now = round_
        try:
            self._rounds.carry_out(round_)
            self._hall.settled(course, round_.save.step)
            self._rounds.prune(round_)
        except CheckpointError as error:
            self._failed(course, round_, error)
        finally:
            self._now = None
            self._hall.look_again()

    def _failed(self, course: Course, round_: Round | None, error: CheckpointError) -> None:
        step = round_.save.step if round_ else max(self._hall.wanted(course), default=None)
        logger.error("saving step %s: %s; earlier checkpoints are untouched", step, error)
        if round_ is not None:
            self._hall.set_state(course, round_.save.step, _afterwards(error))
            if isinstance(error, StoreError):
                self._pending[course.generation.id] = round_
            else:
                self._abandon(round_)
        self._hall.later(course, course.at_once if _is_hopeless(error) else course.retry)
        self._hall.failed(course, step, str(error))

    def _abandon(self, round_: Round) -> None:
        try:
            self._rounds.give_up(round_)
        except CheckpointError as error:
            logger.warning("%s stays announced until its lease is over: %s", round_.save.id, error)


def _is_hopeless(error: CheckpointError) -> bool:
    return isinstance(error, HopelessError)


def _afterwards(error: CheckpointError) -> State:
    return State.LOST if _is_hopeless(error) else State.WAITING
