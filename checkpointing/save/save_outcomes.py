"""Records the outcomes of a trainer's saves, as its node's service reports them."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from checkpointing.errors import SaveError
from checkpointing.events import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointPruned,
    CheckpointSpooled,
    Event,
    Events,
    ReplicasDiffer,
    SaveDropped,
    ServiceLost,
    SpoolFailed,
    TierChosen,
    event_with,
)

logger = logging.getLogger("checkpointing")

# messages of the service about the save tier and the spool, and the events that they become
_LOCAL: dict[str, type[Event]] = {
    "tier": TierChosen,
    "spooled": CheckpointSpooled,
    "spool_failed": SpoolFailed,
}


class SaveStatus(Enum):
    """The state of a save."""

    UNDER_WAY = "under way"  # being staged, or staged, or being written
    COMMITTED = "committed"
    FAILED = "failed"  # for now: the service keeps trying until there is a newer save
    GONE = "gone"  # skipped, dropped for a newer one, or torn


@dataclass(frozen=True)
class SaveOutcome:
    """The outcome of one step's save. Plain data, which is sent between ranks.

    Attributes:
        is_behind: the save is gone, and an earlier one that occupies its slot is still under way.
    """

    fate: SaveStatus
    why: str = ""
    is_behind: bool = False


class OutcomeListener:
    """Receives the messages of the service of one rank's node. Thread-safe."""

    def __init__(self, events: Events, store_url: str) -> None:
        self._events, self._url = events, store_url
        self._changed = threading.Condition()
        self._by_step: dict[int, SaveOutcome] = {}
        self._started_s: dict[int, float] = {}  # start times of saves in progress
        self.trouble = ""  # reason of the last failed save
        self.durable: int | None = None  # the newest step known to be committed
        self.seconds = 0.0  # seconds from the start to the commit of the last committed save
        # when the last commit became known; at first, when this object was made
        self.durable_s = time.monotonic()

    def begin(self, step: int) -> None:
        """Record the start of a save."""
        with self._changed:
            self._started_s[step] = time.monotonic()
            self._set(step, SaveOutcome(SaveStatus.UNDER_WAY))

    def end(self, step: int, fate: SaveStatus, why: str = "") -> bool:
        """Record the outcome of a save. Returns whether it is new: a later failure does not replace
        a commit."""
        with self._changed:
            is_news = self.of(step).fate is not SaveStatus.COMMITTED
            if is_news:
                self._set(step, SaveOutcome(fate, why))
            return is_news

    def of(self, step: int) -> SaveOutcome:
        """Returns the outcome of a step's save; a step that was never saved is gone."""
        with self._changed:
            return self._by_step.get(step, SaveOutcome(SaveStatus.GONE, "it was not saved"))

    def clear(self) -> None:
        """Forget all outcomes, since training has returned to an earlier step."""
        with self._changed:
            self._by_step.clear()
            self._started_s.clear()
            self.durable, self.durable_s = None, time.monotonic()

    def wait(self, step: int, timeout_s: float) -> SaveOutcome:
        """Wait at most `timeout_s` seconds for the outcome of a save, and, if it is gone, of those
        before it. A save that found no slot because those before it cannot be saved has failed like
        them."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended(step), timeout_s)
            outcome = self.of(step)
            if outcome.fate is not SaveStatus.GONE:
                return outcome
            if self._is_stuck(step):
                return SaveOutcome(SaveStatus.FAILED, f"{outcome.why}; {self.trouble}")
            return replace(outcome, is_behind=not self._has_ended(step))

    def check_age(self, most_minutes: float) -> None:
        """Raise if nothing has become durable for `most_minutes` minutes.

        Raises:
            SaveError: nothing has; the message says why.
        """
        minutes = (time.monotonic() - self.durable_s) / 60
        if minutes > most_minutes:
            raise SaveError(
                f"no checkpoint has become durable for {minutes:.1f} minutes, but at most "
                f"{most_minutes:g} are allowed: {self.trouble or 'saves are slow'}"
            )

    def _is_stuck(self, step: int) -> bool:
        durable = -1 if self.durable is None else self.durable
        return any(
            durable < s < step and o.fate is SaveStatus.FAILED for s, o in self._by_step.items()
        )

    def _has_ended(self, step: int) -> bool:
        fate = self.of(step).fate
        if fate is not SaveStatus.GONE:
            return fate is not SaveStatus.UNDER_WAY
        return not any(s < step and self._is_pending(s) for s in self._by_step)

    def _is_pending(self, step: int) -> bool:
        """Whether a save is under way, and none after it is durable: then it was dropped, even if a
        service that has ended since did not report that."""
        is_newest = self.durable is None or step > self.durable
        return is_newest and self._by_step[step].fate is SaveStatus.UNDER_WAY

    def handle(self, message: dict[str, Any]) -> None:
        """Handle a message of the service."""
        kind, step = message["kind"], message.get("step")
        if kind == "committed":
            self._committed(message)
        elif kind == "failed" and step is not None:
            self.trouble = message["error"]
            if self.end(step, SaveStatus.FAILED, self.trouble):
                self._events.emit(CheckpointFailed(step=step, error=self.trouble))
        elif kind == "dropped":
            why = "replaced by a newer one, because the store is slower than the saves"
            if self.end(message["step"], SaveStatus.GONE, why):
                self._events.emit(SaveDropped(step=message["step"]))
        elif kind == "service_failed":
            self._service_failed(f"the node's checkpoint service: {message['error']}")
        elif kind == "displaced":
            self._displaced()
        elif kind == "service_lost":
            self._events.emit(ServiceLost())
        elif kind in _LOCAL:
            fields = {key: value for key, value in message.items() if key != "kind"}
            self._events.emit(event_with(_LOCAL[kind], time.time(), fields))
        elif kind == "checkpoint_pruned":
            self._events.emit(CheckpointPruned(step=message["step"], id=message["id"]))

    def _service_failed(self, why: str) -> None:
        """Record that the service cannot be started again for now; the saves under way wait for
        it."""
        with self._changed:
            under_way = [s for s, o in self._by_step.items() if o.fate is SaveStatus.UNDER_WAY]
        for step in under_way:
            self.handle({"kind": "failed", "step": step, "error": why})

    def _displaced(self) -> None:
        why = "another process has joined the node's checkpoint service as this rank of the run"
        with self._changed:
            for step, outcome in self._by_step.items():
                if outcome.fate is SaveStatus.UNDER_WAY:
                    self._by_step[step] = SaveOutcome(SaveStatus.GONE, why)
            self._changed.notify_all()

    def _committed(self, message: dict[str, Any]) -> None:
        step = int(message["step"])
        with self._changed:
            if self.of(step).fate is SaveStatus.COMMITTED:
                return  # repeated by a service that was restarted
            self.durable = max(step, -1 if self.durable is None else self.durable)
            self.durable_s = now_s = time.monotonic()
            fields = {k: v for k, v in message.items() if k in ("id", "bytes", "new_bytes")}
            if step in self._started_s:
                self.seconds = fields["seconds"] = now_s - self._started_s[step]
        # the event is emitted before the threads that wait for the step continue
        self._events.emit(CheckpointCommitted(step=step, store=self._url, **fields))
        if differing := message.get("differing"):
            self._replicas_differ(step, fields.get("id"), differing)
        self._set(step, SaveOutcome(SaveStatus.COMMITTED))

    def _replicas_differ(self, step: int, id_: Any, differing: dict[str, Any]) -> None:
        if self._events.rank == 0:  # only rank 0 emits events
            logger.error(
                "step %d: ranks hold different replicas of %d tensors or values: %s. The "
                "checkpoint is marked%s",
                step,
                differing["count"],
                differing["summary"],
                ", and restore() prefers one that is not" if differing["is_suspect"] else "",
            )
        self._events.emit(ReplicasDiffer(step=step, id=id_, **differing))

    def _set(self, step: int, outcome: SaveOutcome) -> None:
        with self._changed:
            self._by_step[step] = outcome
            # a save under way is asked for however many after it were skipped: it holds a slot
            ended = [s for s in self._by_step if not self._is_pending(s)]
            for old in sorted(ended)[:-16]:  # no longer asked for
                del self._by_step[old]
                self._started_s.pop(old, None)
            self._changed.notify_all()
