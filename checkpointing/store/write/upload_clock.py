"""Measures how fast a storage takes what is uploaded to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class SentBytes:
    """What was uploaded in some time.

    Attributes:
        seconds: seconds in which at least one upload was under way.
        is_bound: whether as many uploads as there may be were under way whenever one ended.
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
        # of the measurement that is not complete yet
        self._since_s, self._bytes, self._ended, self._is_bound = clock(), 0, 0, True

    def begin(self) -> None:
        """Record that an upload begins."""
        with self._lock:
            if not self._under_way:
                self._start_over()
            self._under_way += 1

    def end(self, stored: int) -> SentBytes | None:
        """Record that an upload of so many bytes has ended. Returns a measurement if one is
        complete: when no upload is left, and after every two rounds of uploads, which evens out
        those that end together."""
        with self._lock:
            self._bytes += stored
            self._ended += 1
            self._is_bound = self._is_bound and self._under_way == self._most
            self._under_way -= 1
            if self._under_way and self._ended < 2 * self._most:
                return None
            sent = SentBytes(self._bytes, self._clock() - self._since_s, self._is_bound)
            self._start_over()
            return sent

    def _start_over(self) -> None:
        self._since_s, self._bytes, self._ended, self._is_bound = self._clock(), 0, 0, True
