"""Holds one connection to a service: requests, their answers, and messages that the service sends
without a request."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from checkpointing.errors import CheckpointError, ServiceError
from checkpointing.service.protocol.socket_frames import FrameSocket

logger = logging.getLogger("checkpointing")

ANSWER_S = 60.0  # seconds without an answer after which a service counts as gone

OnMessage = Callable[[dict[str, Any]], None]
Introduce = Callable[["ServiceConnection"], None]


class ServiceConnection:
    """The trainer's end of a connection. Thread-safe."""

    def __init__(
        self, wire: FrameSocket, on_message: OnMessage, on_end: Callable[[ServiceConnection], None]
    ) -> None:
        """Start the thread that receives.

        Args:
            on_message, on_end: called from a thread of this object.
        """
        self._wire, self._on_message, self._on_end = wire, on_message, on_end
        self._numbers = itertools.count(1)
        self._answers: dict[int, _Answer] = {}
        self._lock = threading.Lock()
        self._ended = False
        self.is_silent = False
        """Whether nothing was received since a request was not answered in time."""
        self._thread = threading.Thread(target=self._listen, name="service", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return self._ended

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message that has no answer.

        Raises:
            ConnectionError: the service is gone.
        """
        self._wire.send({"kind": kind, **fields})

    def request(
        self, kind: str, *, timeout_s: float = ANSWER_S, fds: tuple[int, ...] = (), **fields: Any
    ) -> dict[str, Any]:
        """Send a request and return its answer; the caller owns the descriptors in its "fds".

        Raises:
            ConnectionError: the service is gone.
            ServiceError: the service refuses, or does not answer in time.
        """
        return self.begin_request(kind, fds=fds, **fields)(timeout_s)

    def begin_request(
        self, kind: str, *, fds: tuple[int, ...] = (), **fields: Any
    ) -> Callable[[float], dict[str, Any]]:
        """Send a request without waiting. Returns the function that waits for so many seconds and
        returns the answer; it raises as `request`.

        Raises:
            ConnectionError: the service is gone.
        """
        answer = _Answer()
        with self._lock:
            if self._ended:
                raise ConnectionError("it has ended")
            number = next(self._numbers)
            self._answers[number] = answer
        try:
            self._wire.send({"kind": kind, "number": number, **fields}, fds)
        except BaseException:
            self._forget(number)
            raise
        return partial(self._finish_request, kind, number, answer)

    def _finish_request(
        self, kind: str, number: int, answer: _Answer, timeout_s: float
    ) -> dict[str, Any]:
        try:
            if not answer.is_there_within(timeout_s):
                self.is_silent = True
                raise ServiceError(f"no answer to {kind!r} for {timeout_s:.0f} s")
            return answer.get()
        finally:
            self._forget(number)

    def _forget(self, number: int) -> None:
        """Stop waiting for the answer to a request."""
        with self._lock:
            self._answers.pop(number, None)

    def close(self) -> None:
        """Close the connection and wait until its thread has ended."""
        self._wire.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def close_in_child(self) -> None:
        """Close the descriptor in a child of the process that owns the connection, which stays
        open."""
        self._wire.close_in_child()

    def _listen(self) -> None:
        try:
            while (received := self._wire.receive()) is not None:
                self._handle(*received)
        except CheckpointError as error:
            logger.error("the checkpoint service: %s", error)
        self._wire.close()
        with self._lock:
            self._ended = True
            waiting = list(self._answers.values())
        for answer in waiting:
            answer.set(None)
        self._on_end(self)

    def _handle(self, message: dict[str, Any], fds: list[int]) -> None:
        self.is_silent = False
        with self._lock:
            answer = self._answers.pop(message.get("number", 0), None)
        if answer is not None:
            answer.set({**message, "fds": fds})
            return
        give_back({"fds": fds})
        if message["kind"] == "answer":
            return  # nobody waits for this answer any longer
        try:
            self._on_message(message)
        except Exception:
            # an exception in a listener must not end the connection
            logger.exception("handling the message %s failed", message["kind"])


class _Answer:
    """An answer that is waited for."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._message: dict[str, Any] | None = None

    def set(self, message: dict[str, Any] | None) -> None:
        self._message = message
        self._there.set()

    def is_there_within(self, timeout_s: float) -> bool:
        return self._there.wait(timeout_s)

    def get(self) -> dict[str, Any]:
        if self._message is None:
            raise ConnectionError("it has ended")
        if "refused" in self._message:
            raise ServiceError(self._message["refused"])
        return self._message


def give_back(answer: dict[str, Any]) -> None:
    """Close the descriptors of an answer that nobody needs."""
    for fd in answer["fds"]:
        os.close(fd)
