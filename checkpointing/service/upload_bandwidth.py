"""Limits the rate at which packs are sent to the storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from checkpointing.format.object_keys import PACKS
from checkpointing.storage import Buffer, Storage
from checkpointing.storage.forwarding_storage import ForwardingStorage
from checkpointing.storage.lazy_parts import total_size

BURST_S = 0.5  # seconds' worth of bytes that may be sent at once after a pause


class BandwidthTokenBucket:
    """A token bucket that fills at a steady rate; a caller that takes more than there is waits.
    Thread-safe."""

    def __init__(
        self,
        per_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_s, self._clock, self._sleep = per_s, clock, sleep
        self._level, self._last_s = per_s * BURST_S, clock()
        self._lock = threading.Lock()

    def take(self, amount: float) -> None:
        """Wait until `amount` may be spent. It is taken immediately, below zero if necessary, and
        the caller sleeps until the debt is paid, so that large and small amounts get the same
        rate, in the order of the calls."""
        with self._lock:
            now_s = self._clock()
            filled = self._level + (now_s - self._last_s) * self._per_s
            self._level, self._last_s = min(filled, self._per_s * BURST_S) - amount, now_s
            wait_s = -self._level / self._per_s
        if wait_s > 0:
            self._sleep(wait_s)


class ThrottledStorage(ForwardingStorage):
    """A storage that takes the bytes of packs from a token bucket before it sends them. Records are
    small and do not wait: a lease that comes late would have expired."""

    def __init__(self, storage: Storage, bucket: BandwidthTokenBucket) -> None:
        super().__init__(storage)
        self._bucket = bucket

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        if key.startswith(PACKS):
            self._bucket.take(total_size(parts))
        super().put(key, parts)
