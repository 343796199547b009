"""A storage that does not send faster than it is allowed to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from checkpointing.format.names import PACKS
from checkpointing.storage import Buffer, Entry, Storage
from checkpointing.storage.sweeping import SweepsTemporaries

BURST_S = 0.5  # seconds' worth that may go at once after a pause


class TokenBucket:
    """Fills at a steady rate; who takes more than there is waits. Thread-safe."""

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
        """Wait until `amount` may be spent. It is spent at once and the debt slept off, so that
        large and small amounts come to the same rate, in the order of their coming."""
        with self._lock:
            now_s = self._clock()
            filled = self._level + (now_s - self._last_s) * self._per_s
            self._level, self._last_s = min(filled, self._per_s * BURST_S) - amount, now_s
            wait_s = -self._level / self._per_s
        if wait_s > 0:
            self._sleep(wait_s)


class Throttled:
    """`storage`, with the bytes of packs taken from a bucket first. Records are small, and must
    not wait: a lease that came late would be one that has run out."""

    def __init__(self, storage: Storage, bucket: TokenBucket) -> None:
        self._storage, self._bucket = storage, bucket

    @property
    def url(self) -> str:
        return self._storage.url

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        if key.startswith(PACKS):
            self._bucket.take(sum(len(part) for part in parts))
        self._storage.put(key, parts)

    def create(self, key: str, data: bytes) -> bool:
        return self._storage.create(key, data)

    def replace(self, key: str, data: bytes) -> None:
        self._storage.replace(key, data)

    def get(self, key: str) -> bytes:
        return self._storage.get(key)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        return self._storage.get_range(key, start, length)

    def list(self, prefix: str) -> list[Entry]:
        return self._storage.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self._storage.delete(keys)

    def sweep_temporaries(self, older_than_s: float) -> int:
        """As `SweepsTemporaries`; 0 if the storage leaves none."""
        storage = self._storage
        if not isinstance(storage, SweepsTemporaries):
            return 0
        return storage.sweep_temporaries(older_than_s)

    def close(self) -> None:
        self._storage.close()
