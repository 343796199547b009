"""Decides whether there is time to encode: a pure function, and its inputs for a save under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

_NEWEST = 0.1  # weight of the newest chunk in a rate
_MARGIN = 0.8  # share of the remaining time to count on, since rates are estimates


@dataclass(frozen=True)
class EncodeOutlook:
    """The work and the time that are left of a save."""

    raw_left: float  # raw bytes not yet encoded or written, including the chunk in question
    encode_rate: float | None  # raw bytes per second, of all threads together; None: unknown
    write_rate: float | None  # stored bytes per second; None: unknown
    share: float  # stored bytes per raw byte of the encoded chunks
    seconds_left: float | None  # seconds until the deadline; None: there is none


def may_encode(raw: int, ahead: EncodeOutlook) -> bool:
    """Whether a chunk of `raw` bytes may be encoded, or must be written as it is.

    Assumes the worst case, in which writing waits for encoding. Under a deadline a chunk is encoded
    only if the save ends no later than it would with everything raw, or if it ends within 0.8 of
    the time left with everything after this chunk raw. Without a deadline it is always encoded;
    with one, and while rates are unknown, never.
    """
    if ahead.seconds_left is None:
        return True
    if not ahead.encode_rate or not ahead.write_rate:
        return False
    spent = raw / ahead.encode_rate
    saved = raw * (1 - ahead.share) / ahead.write_rate
    all_raw = ahead.raw_left / ahead.write_rate
    return spent <= saved or all_raw + spent - saved <= _MARGIN * ahead.seconds_left


class EncodeBudget:
    """Tracks the outlook of a save under way. Thread-safe.

    `again` takes over the rates of the save before.
    """

    def __init__(
        self,
        raw_left: int,
        *,
        workers: int = 1,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            raw_left: raw bytes of the whole save.
            workers: threads that encode.
            deadline: time at which the save must be written, on `clock`.
        """
        self._workers, self._deadline, self._clock = workers, deadline, clock
        self._ahead = EncodeOutlook(raw_left, None, None, 1.0, None)
        self._lock = threading.Lock()

    def again(self, raw_left: int, *, deadline: float | None = None) -> EncodeBudget:
        """Returns a budget for the next save that knows the rates of this one."""
        budget = EncodeBudget(raw_left, workers=self._workers, deadline=deadline, clock=self._clock)
        budget._ahead = replace(self.outlook(), raw_left=raw_left)
        return budget

    def outlook(self) -> EncodeOutlook:
        """Returns the present outlook."""
        left = None if self._deadline is None else self._deadline - self._clock()
        with self._lock:
            return replace(self._ahead, seconds_left=left)

    def hurry(self, deadline: float) -> None:
        """Set the deadline once it is known."""
        self._deadline = deadline

    def allows(self, raw: int) -> bool:
        """Whether a chunk of `raw` bytes may be encoded."""
        return may_encode(raw, self.outlook())

    def encoded(self, raw: int, stored: int, seconds: float) -> None:
        """Record that a chunk was encoded, in so many seconds of one thread."""
        with self._lock:
            ahead = self._ahead
            rate = _smoothed_rate(ahead.encode_rate, self._workers * raw, seconds)
            share = ahead.share + _NEWEST * (stored / raw - ahead.share) if raw else ahead.share
            self._ahead = replace(ahead, encode_rate=rate, share=share)

    def written(self, raw: int, stored: int, seconds: float) -> None:
        """Record that `stored` bytes, for `raw` bytes of state, were written in so many seconds of
        wall time. Bytes that were already in the store count as raw only."""
        with self._lock:
            ahead = self._ahead
            rate = _smoothed_rate(ahead.write_rate, stored, seconds)
            left = max(ahead.raw_left - raw, 0)
            self._ahead = replace(ahead, write_rate=rate, raw_left=left)


def _smoothed_rate(rate: float | None, size: int, seconds: float) -> float | None:
    if not size or seconds <= 0:
        return rate
    if rate is None:
        return size / seconds
    return 1 / (1 / rate + _NEWEST * (seconds / size - 1 / rate))
