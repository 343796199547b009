"""Measures how fast a storage takes what is uploaded to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class SentBytes:
    """What was uploaded in some time.

    Attributes:
        seconds: seconds in which at least one upload was under way.
        is_bound: whether the save did nothing but wait for uploads in at least half of them.
    """

    bytes: int
    seconds: float
    is_bound: bool


class UploadClock:
    """Measures how fast uploads are, without the time in which there are none. Thread-safe."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            most: the number of uploads that there may be at a time.
        """
        self._most, self._clock = most, clock
        self._lock = threading.Lock()
        self._under_way = 0
        self._is_waiting = False
        # of the measurement that is not complete yet
        self._since_s = self._noted_s = clock()
        self._waited_s, self._bytes, self._ended = 0.0, 0, 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Record that the save waits for uploads in this block."""
        self._set_waiting(True)
        try:
            yield
        finally:
            self._set_waiting(False)

    def begin(self) -> None:
        """Record that an upload begins."""
        with self._lock:
            if not self._under_way:
                self._start_over(self._clock())
            self._under_way += 1

    def end(self, stored: int) -> SentBytes | None:
        """Record that an upload of so many bytes has ended. Returns a measurement if one is
        complete: when no upload is left, and after every two rounds of uploads, which evens out
        those that end together."""
        with self._lock:
            self._bytes += stored
            self._ended += 1
            self._under_way -= 1
            if self._under_way and self._ended < 2 * self._most:
                return None
            now_s = self._note_wait()
            seconds = now_s - self._since_s
            sent = SentBytes(self._bytes, seconds, is_bound=2 * self._waited_s >= seconds)
            self._start_over(now_s)
            return sent

    def _set_waiting(self, is_waiting: bool) -> None:
        with self._lock:
            self._note_wait()
            self._is_waiting = is_waiting

    def _note_wait(self) -> float:
        """Count the time since the last note, if the save waits. Return the present time."""
        now_s = self._clock()
        if self._is_waiting:
            self._waited_s += now_s - self._noted_s
        self._noted_s = now_s
        return now_s

    def _start_over(self, now_s: float) -> None:
        self._since_s = self._noted_s = now_s
        self._waited_s, self._bytes, self._ended = 0.0, 0, 0
