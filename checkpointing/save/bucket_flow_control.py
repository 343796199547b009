"""Keeps track of which of a rank's buckets may be filled, from the messages of its node's
service."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from checkpointing.errors import SaveError

EMPTY_TIMEOUT_S = (
    300.0  # seconds in which the service has to empty a bucket of any rank of the node
)
_POLL_S = 0.5


class BucketFlowControl:
    """Flow control of one rank's buckets. Thread-safe.

    Args:
        timeout_s: seconds without any bucket emptied after which `free` and `await_empty` give up.
            The service itself allows an unreachable store about two minutes.
    """

    def __init__(self, rank: int, timeout_s: float = EMPTY_TIMEOUT_S) -> None:
        self._rank, self._timeout_s = rank, timeout_s
        self._changed = threading.Condition()
        self._free: deque[int] = deque()
        self._full: set[int] = set()  # indexes of buckets that are full or being read
        self._step: int | None = None  # the step whose state fills the buckets
        self._why: str | None = None  # why that step can no longer be saved
        self._moved_s = time.monotonic()

    @property
    def is_broken(self) -> bool:
        """Whether a bucket may be read without end, so that new memory is needed."""
        with self._changed:
            return self._why is not None

    def renew(self, buckets: int) -> None:
        """Start over with new memory, all of which is free."""
        with self._changed:
            self._free, self._full = deque(range(buckets)), set()
            self._step = self._why = None

    def begin(self, step: int) -> None:
        """Fill the buckets with this step's state from now on."""
        with self._changed:
            self._step, self._moved_s = step, time.monotonic()

    def free(self) -> int:
        """Block until there is a bucket that may be filled, and return its index.

        Raises:
            SaveError: the service does not empty any; the message says why.
        """
        with self._changed:
            self._wait(lambda: bool(self._free))
            if self._why is None and not self._free:
                self._why = self._late()
            if self._why is not None:
                raise SaveError(self._why)
            return self._free.popleft()

    def fill(self, bucket: int) -> None:
        """Mark a bucket as full and about to be read."""
        with self._changed:
            self._full.add(bucket)

    def stop(self, why: str) -> None:
        """Give up the state that is being filled in."""
        with self._changed:
            self._why = self._why or why
            self._changed.notify_all()

    def await_empty(self) -> str | None:
        """Block until no bucket is being read any more, or none can be. Returns why not, if that
        takes too long."""
        with self._changed:
            self._moved_s = time.monotonic()
            self._wait(lambda: not self._full)
            return self._late() if self._full and self._why is None else None

    def handle(self, message: dict[str, Any]) -> None:
        """Handle a message of the service."""
        kind, step = message["kind"], message.get("step")
        with self._changed:
            if kind == "emptied":
                self._emptied(step, message)
            elif kind == "unread" and step == self._step:
                self.stop(message["error"])
            elif kind in ("service_lost", "displaced") and self._full:
                self.stop(_LOST[kind])

    def _emptied(self, step: int | None, message: dict[str, Any]) -> None:
        self._moved_s = time.monotonic()
        bucket = message["bucket"]
        if (message["of"], step) == (self._rank, self._step) and bucket in self._full:
            self._full.remove(bucket)
            self._free.append(bucket)
        self._changed.notify_all()

    def _wait(self, is_over: Callable[[], bool]) -> None:
        while self._why is None and not is_over():
            if time.monotonic() - self._moved_s > self._timeout_s:
                return
            self._changed.wait(_POLL_S)

    def _late(self) -> str:
        return (
            f"the node's checkpoint service has emptied no bucket for {self._timeout_s:.0f} s: "
            "the store or another node is slow or cannot be reached"
        )


SERVICE_DIED = "the node's checkpoint service has died while it read the state"
_LOST = {
    "service_lost": SERVICE_DIED,
    "displaced": "another process has joined the node's checkpoint service as this rank of the run",
}
