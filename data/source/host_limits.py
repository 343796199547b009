"""Limits of one host: concurrent requests, and bytes per second."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from data.errors import DataError


@dataclass(frozen=True)
class Limits:
    """The limits of one `Sources` for each host.

    A quarter of the requests is reserved for short ones, so that a read for a sample does not wait
    for downloads of whole shards.
    """

    requests: int = 32
    bytes_per_s: float | None = None
    ranges: int = 4
    """The ranges of one shard that are downloaded at a time, if the host has so many requests to
    spare: one connection to an object store brings less than the network does. With 1, a shard is
    one request. See `data.source.parallel_ranges`."""

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise DataError(f"requests per host must be at least 1, got {self.requests}")
        if self.bytes_per_s is not None and self.bytes_per_s <= 0:
            raise DataError(f"bytes per second must be above 0, got {self.bytes_per_s}")
        if self.ranges < 1:
            raise DataError(f"ranges of one shard must be at least 1, got {self.ranges}")

    @property
    def streams(self) -> int:
        """The number of requests that may download whole shards; at least one."""
        return max(1, self.requests - max(1, self.requests // 4))


class HostTokenBucket:
    """A token bucket of `rate` bytes per second; after a pause, one second's worth may pass at
    once."""

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._tokens = rate
        self._at_s = now_s

    def take(self, size: int, now_s: float) -> float:
        """Take `size` bytes; returns the seconds to wait before using them."""
        self._tokens = min(self._rate, self._tokens + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        self._tokens -= size
        return max(0.0, -self._tokens / self._rate)


class HostLimiter:
    """Enforces the limits of one host. Thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._slots = threading.BoundedSemaphore(limits.requests)
        self._streams = threading.BoundedSemaphore(limits.streams)
        self._lock = threading.Lock()
        rate = limits.bytes_per_s
        self._bucket = None if rate is None else HostTokenBucket(rate, time.monotonic())

    @contextmanager
    def request(self) -> Iterator[None]:
        """Hold one of the host's slots."""
        with self._slots:
            yield

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Hold a slot for a download of a whole shard, which may take long."""
        with self._streams, self._slots:
            yield

    def spare_stream(self) -> ExitStack | None:
        """Take a slot as `stream` does, which the result gives back at its end; None if there is
        none to spare now."""
        if not self._streams.acquire(blocking=False):
            return None
        held = ExitStack()
        held.callback(self._streams.release)
        if not self._slots.acquire(blocking=False):
            held.close()
            return None
        held.callback(self._slots.release)
        return held

    def delay_s(self, size: int) -> float:
        """Count `size` bytes; returns the seconds to wait for them."""
        if self._bucket is None:
            return 0.0
        with self._lock:
            return self._bucket.take(size, time.monotonic())


class HostLimiters:
    """The limiters of all hosts. Thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._hosts: dict[str, HostLimiter] = {}
        self._lock = threading.Lock()

    def of(self, host: str) -> HostLimiter:
        with self._lock:
            return self._hosts.setdefault(host, HostLimiter(self._limits))
