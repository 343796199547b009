"""What becomes of a trainer's saves, as its node's service tells it."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from checkpointing.errors import SaveError
from checkpointing.events import Events

logger = logging.getLogger("checkpointing")

# what the service says of the deadline's choice and the node's own disk, and the event that it is
_LOCAL = {
    "tier": "checkpoint_tier",
    "spooled": "checkpoint_spooled",
    "spool_failed": "spool_failed",
}


class SaveStatus(Enum):
    """How far a save has come."""

    UNDER_WAY = "under way"  # being staged, or staged, or being written
    COMMITTED = "committed"
    FAILED = "failed"  # for now: the service goes on trying as long as nothing newer comes
    GONE = "gone"  # skipped, dropped for a newer one, or torn


@dataclass(frozen=True)
class SaveOutcome:
    """Of one step's save. Plain data: it travels between ranks.

    Attributes:
        is_behind: it is gone, and one before it is under way, in whose place it would have been.
    """

    fate: SaveStatus
    why: str = ""
    is_behind: bool = False


class OutcomeListener:
    """Listens to the service of one rank's node. Thread-safe."""

    def __init__(self, events: Events, store_url: str) -> None:
        self._events, self._url = events, store_url
        self._changed = threading.Condition()
        self._by_step: dict[int, SaveOutcome] = {}
        self._begun_s: dict[int, float] = {}  # of saves that are in it
        self.trouble = ""  # why the last save that failed did
        self.durable: int | None = None  # the newest step known to be committed
        self.seconds = 0.0  # that the last committed save took to become durable
        self.durable_s = time.monotonic()  # when that became known; before, when this was made

    def begin(self, step: int) -> None:
        """A save of this step was begun."""
        with self._changed:
            self._begun_s[step] = time.monotonic()
            self._set(step, SaveOutcome(SaveStatus.UNDER_WAY))

    def end(self, step: int, fate: SaveStatus, why: str = "") -> bool:
        """What became of it, and whether that is news: nothing worse comes after a commit."""
        with self._changed:
            is_news = self.of(step).fate is not SaveStatus.COMMITTED
            if is_news:
                self._set(step, SaveOutcome(fate, why))
            return is_news

    def of(self, step: int) -> SaveOutcome:
        """A step that was never begun is gone."""
        with self._changed:
            return self._by_step.get(step, SaveOutcome(SaveStatus.GONE, "it was not saved"))

    def clear(self) -> None:
        """After going back in time."""
        with self._changed:
            self._by_step.clear()
            self._begun_s.clear()
            self.durable, self.durable_s = None, time.monotonic()

    def wait(self, step: int, timeout_s: float) -> SaveOutcome:
        """Its outcome, and if it is gone also that of those before it, at the latest after so
        long. One that had no place because those before it cannot be saved has failed like them."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended(step), timeout_s)
            outcome = self.of(step)
            if outcome.fate is not SaveStatus.GONE:
                return outcome
            if self._is_stuck(step):
                return SaveOutcome(SaveStatus.FAILED, f"{outcome.why}; {self.trouble}")
            return replace(outcome, is_behind=not self._has_ended(step))

    def check_age(self, most_minutes: float) -> None:
        """Refuse to go on without anything durable for longer.

        Raises:
            SaveError: so it is; says why.
        """
        minutes = (time.monotonic() - self.durable_s) / 60
        if minutes > most_minutes:
            raise SaveError(
                f"no checkpoint has become durable for {minutes:.1f} minutes, and at most "
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
        earlier = (o.fate for s, o in self._by_step.items() if s < step)
        return SaveStatus.UNDER_WAY not in earlier

    def hear(self, message: dict[str, Any]) -> None:
        """What the service says."""
        kind, step = message["kind"], message.get("step")
        if kind == "committed":
            self._committed(message)
        elif kind == "failed" and step is not None:
            self.trouble = message["error"]
            if self.end(step, SaveStatus.FAILED, self.trouble):
                self._events.emit("checkpoint_failed", step=step, error=self.trouble)
        elif kind == "dropped":
            why = "dropped for a newer one: the store is slower than the saves"
            if self.end(message["step"], SaveStatus.GONE, why):
                self._events.emit("save_dropped", step=step)
        elif kind == "service_failed":
            self._service_failed(f"the node's checkpoint service: {message['error']}")
        elif kind == "displaced":
            self._displaced()
        elif kind == "service_lost":
            self._events.emit("service_lost")
        elif kind in _LOCAL:
            fields = {key: value for key, value in message.items() if key != "kind"}
            self._events.emit(_LOCAL[kind], **fields)
        elif kind == "checkpoint_pruned":
            self._events.emit(kind, step=step, id=message["id"])

    def _service_failed(self, why: str) -> None:
        """It cannot be started again, for now: what is under way is when it can."""
        with self._changed:
            under_way = [s for s, o in self._by_step.items() if o.fate is SaveStatus.UNDER_WAY]
        for step in under_way:
            self.hear({"kind": "failed", "step": step, "error": why})

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
                return  # said again, by a service that was started again
            self.durable = max(step, -1 if self.durable is None else self.durable)
            self.durable_s = now_s = time.monotonic()
            fields = {k: v for k, v in message.items() if k in ("id", "bytes", "new_bytes")}
            if step in self._begun_s:
                self.seconds = fields["seconds"] = now_s - self._begun_s[step]
        # before whoever waits for the step goes on: the event is written by then
        self._events.emit("checkpoint_committed", step=step, store=self._url, **fields)
        if differing := message.get("differing"):
            self._replicas_differ(step, fields.get("id"), differing)
        self._set(step, SaveOutcome(SaveStatus.COMMITTED))

    def _replicas_differ(self, step: int, id_: Any, differing: dict[str, Any]) -> None:
        if self._events.rank == 0:  # one of those who hear it
            logger.error(
                "step %d: ranks hold different replicas of %d tensors or values: %s. The "
                "checkpoint is marked%s",
                step,
                differing["count"],
                differing["summary"],
                ", and restore() prefers one that is not" if differing["is_suspect"] else "",
            )
        self._events.emit("replicas_differ", step=step, id=id_, **differing)

    def _set(self, step: int, outcome: SaveOutcome) -> None:
        with self._changed:
            self._by_step[step] = outcome
            for old in sorted(self._by_step)[:-16]:  # nobody asks for these any more
                del self._by_step[old]
                self._begun_s.pop(old, None)
            self._changed.notify_all()
