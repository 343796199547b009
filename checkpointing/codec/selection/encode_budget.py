"""Decides whether to spend time on encoding: a pure function, and its inputs for a save under
way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

_NEWEST = 0.1  # weight of the newest chunk or upload in a rate
_WHOLE = 1 << 20  # bytes; a smaller chunk has less weight in the rate of encoding
_MARGIN = 0.8  # share of the remaining time to count on, since rates are estimates
# bytes uploaded in a measurement; how long fewer take says more about latency than about bandwidth
_LARGE = 8 << 20
# one in so many chunks that are not encoded because the store is fast is encoded all the same, so
# that the codec's rate stays known
_PROBE_EVERY = 64


@dataclass(frozen=True)
class EncodeOutlook:
    """The work and the time that are left of a save."""

    raw_left: float  # raw bytes not yet encoded or written, including the chunk in question
    encode_rate: float | None  # raw bytes per second, of all threads together; None: unknown
    write_rate: float | None  # stored bytes per second; None: unknown
    share: float  # stored bytes per raw byte of the encoded chunks
    seconds_left: float | None  # seconds until the deadline; None: there is none
    store_rate: float | None = None
    """Stored bytes per second that the store takes at least while something is sent to it; None:
    unknown."""
    only_if_slower: bool = False
    """Whether a chunk is only encoded while the store is slower than that."""


def may_encode(raw: int, ahead: EncodeOutlook) -> bool:
    """Whether a chunk of `raw` bytes may be encoded, or must be written as it is.

    Assumes the worst case, in which writing waits for encoding. Under a deadline a chunk is encoded
    only if the save ends no later than it would with everything raw, or if it ends within 0.8 of
    the time left with everything after this chunk raw. Without a deadline it is always encoded;
    with one, and while rates are unknown, never.

    With `only_if_slower` it is not encoded either if the store takes raw bytes at a higher rate
    than they are encoded at: encoding is the slower half of the save then. While these rates are
    unknown, that does not count.
    """
    return not is_store_faster(ahead) and _is_in_time(raw, ahead)


def _is_in_time(raw: int, ahead: EncodeOutlook) -> bool:
    """Whether a chunk may be encoded as far as the deadline goes."""
    if ahead.seconds_left is None:
        return True
    if not ahead.encode_rate or not ahead.write_rate:
        return False
    spent = raw / ahead.encode_rate
    saved = raw * (1 - ahead.share) / ahead.write_rate
    all_raw = ahead.raw_left / ahead.write_rate
    return spent <= saved or all_raw + spent - saved <= _MARGIN * ahead.seconds_left


def is_store_faster(ahead: EncodeOutlook) -> bool:
    """Whether nothing is to be encoded, as the store takes raw bytes at a higher rate."""
    if not ahead.only_if_slower or ahead.store_rate is None or ahead.encode_rate is None:
        return False
    return ahead.store_rate > ahead.encode_rate


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
        only_if_slower: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            raw_left: raw bytes of the whole save.
            workers: threads that encode.
            deadline: time at which the save must be written, on `clock`.
            only_if_slower: as of `EncodeOutlook`.
        """
        self._workers, self._deadline, self._clock = workers, deadline, clock
        self._ahead = EncodeOutlook(raw_left, None, None, 1.0, None, only_if_slower=only_if_slower)
        self._not_encoded = 0  # chunks since the last one that was encoded as a probe
        self._lock = threading.Lock()

    def again(
        self, raw_left: int, *, deadline: float | None = None, only_if_slower: bool = False
    ) -> EncodeBudget:
        """Returns a budget for the next save that knows the rates of this one."""
        budget = EncodeBudget(raw_left, workers=self._workers, deadline=deadline, clock=self._clock)
        with self._lock:
            ahead = self._ahead
        budget._ahead = replace(ahead, raw_left=raw_left, only_if_slower=only_if_slower)
        budget._not_encoded = self._not_encoded
        return budget

    def outlook(self) -> EncodeOutlook:
        """Returns the present outlook."""
        with self._lock:
            ahead = self._ahead
        if self._deadline is None:
            return ahead
        return replace(ahead, seconds_left=self._deadline - self._clock())

    def hurry(self, deadline: float) -> None:
        """Set the deadline once it is known."""
        self._deadline = deadline

    def allows(self, raw: int) -> bool:
        """Whether a chunk of `raw` bytes may be encoded, or is to be, as a probe."""
        ahead = self.outlook()
        if not _is_in_time(raw, ahead):
            return False
        return not is_store_faster(ahead) or self._is_probe()

    def encoded(self, raw: int, stored: int, seconds: float) -> None:
        """Record that a chunk was encoded, in so many seconds of one thread."""
        with self._lock:
            ahead = self._ahead
            weight = _NEWEST * min(raw / _WHOLE, 1.0)
            rate = _smoothed_rate(ahead.encode_rate, self._workers * raw, seconds, weight)
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

    def sent(self, stored: int, seconds: float, *, is_bound: bool) -> None:
        """Record that the store has taken so many bytes in the seconds in which it had something to
        take. Less than 8 MiB do not count.

        Args:
            is_bound: whether the save waited for the store. If not, the store may be faster.
        """
        if stored < _LARGE:
            return
        with self._lock:
            before = self._ahead.store_rate
            if is_bound or seconds <= 0:
                rate = _smoothed_rate(before, stored, seconds)
            else:
                rate = max(before or 0.0, stored / seconds)
            self._ahead = replace(self._ahead, store_rate=rate)

    def _is_probe(self) -> bool:
        with self._lock:
            self._not_encoded = (self._not_encoded + 1) % _PROBE_EVERY
            return self._not_encoded == 0


def _smoothed_rate(
    rate: float | None, size: int, seconds: float, weight: float = _NEWEST
) -> float | None:
    if not size or seconds <= 0:
        return rate
    if rate is None:
        return size / seconds
    return 1 / (1 / rate + weight * (seconds / size - 1 / rate))
