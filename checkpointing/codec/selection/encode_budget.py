"""Whether there is time to encode: a pure function, and what it is given in a save under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

_NEWEST = 0.1  # weight of the newest chunk in a rate
_MARGIN = 0.8  # share of the time left to count on: rates are estimates


@dataclass(frozen=True)
class EncodeOutlook:
    """What lies ahead of a save."""

    raw_left: float  # raw bytes not yet encoded or written, with the chunk asked about
    encode_rate: float | None  # raw bytes per second, of all threads together; None: not known yet
    write_rate: float | None  # stored bytes per second; None: not known yet
    share: float  # stored bytes per raw byte of what was encoded
    seconds_left: float | None  # until the deadline; None: there is none


def may_encode(raw: int, ahead: EncodeOutlook) -> bool:
    """Whether a chunk of `raw` bytes may be encoded, or has to be written as it is.

    Assumes that writing waits for encoding, which is the worst case. Under a deadline a chunk is
    encoded only if the save ends no later than all raw, or, everything after this chunk raw,
    within 0.8 of the time left. Without a deadline it is always encoded; with one, and rates not
    known yet, never.
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
    """The outlook of a save under way. Thread-safe.

    Rates are taken over from the save before by `again`.
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
            deadline: when it has to be written, on `clock`.
        """
        self._workers, self._deadline, self._clock = workers, deadline, clock
        self._ahead = EncodeOutlook(raw_left, None, None, 1.0, None)
        self._lock = threading.Lock()

    def again(self, raw_left: int, *, deadline: float | None = None) -> EncodeBudget:
        """One for the next save, that knows the rates of this one."""
        budget = EncodeBudget(raw_left, workers=self._workers, deadline=deadline, clock=self._clock)
        budget._ahead = replace(self.outlook(), raw_left=raw_left)
        return budget

    def outlook(self) -> EncodeOutlook:
        """As of now."""
        left = None if self._deadline is None else self._deadline - self._clock()
        with self._lock:
            return replace(self._ahead, seconds_left=left)

    def hurry(self, deadline: float) -> None:
        """Set the deadline, now that it is known."""
        self._deadline = deadline

    def allows(self, raw: int) -> bool:
        """Whether a chunk of `raw` bytes may be encoded."""
        return may_encode(raw, self.outlook())

    def encoded(self, raw: int, stored: int, seconds: float) -> None:
        """A chunk was encoded, in so many seconds of one thread."""
        with self._lock:
            ahead = self._ahead
            rate = _toward(ahead.encode_rate, self._workers * raw, seconds)
            share = ahead.share + _NEWEST * (stored / raw - ahead.share) if raw else ahead.share
            self._ahead = replace(ahead, encode_rate=rate, share=share)

    def written(self, raw: int, stored: int, seconds: float) -> None:
        """`stored` bytes, for `raw` bytes of state, were written in so many seconds of wall time;
        bytes found in the store already count as raw alone."""
        with self._lock:
            ahead = self._ahead
            rate = _toward(ahead.write_rate, stored, seconds)
            left = max(ahead.raw_left - raw, 0)
            self._ahead = replace(ahead, write_rate=rate, raw_left=left)


def _toward(rate: float | None, size: int, seconds: float) -> float | None:
    if not size or seconds <= 0:
        return rate
    if rate is None:
        return size / seconds
    return 1 / (1 / rate + _NEWEST * (seconds / size - 1 / rate))
