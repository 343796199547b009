"""Counters of what a node store has done in this process."""

import os
import threading
import weakref
from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass(eq=False)
class CacheMetrics:
    """The counters of one node store; `add` is thread-safe."""

    hits: int = 0
    """Shards that were whole in the cache, or local, when they were opened."""

    misses: int = 0
    """Shards that were not whole in the cache when they were opened."""

    downloads: int = 0
    """Shards that this process fetched into the cache, from the beginning or from where an earlier
    download stopped."""

    bytes_fetched: int = 0
    """Bytes that came from a source, into the cache or bypassing it."""

    bytes_from_peers: int = 0
    """Bytes that came from the caches of other nodes of the job."""

    peer_failures: int = 0
    """Times that another node did not answer, was too slow or sent wrong bytes, so that a shard
    came from elsewhere."""

    bytes_resumed: int = 0
    """Bytes of unfinished downloads that did not have to be fetched again."""

    bypasses: int = 0
    """Reads answered by a source and not by the cache."""

    waits: int = 0
    """Reads that had to wait for a download."""

    wait_s: float = 0.0
    """Seconds that reads waited for bytes from a source, summed over threads."""

    past_s: float = 0.0
    """The part of `wait_s` that reads waited for their source directly, bypassing the cache."""

    evictions: int = 0
    bytes_evicted: int = 0
    uncached: int = 0
    """Shards that were opened while no cache is configured."""

    disk_errors: int = 0
    """Errors of the cache's disk, of all kinds."""

    no_room: int = 0
    """Shards that were not cached because everything else is needed sooner, or the cache is too
    small."""

    frozen: int = 0
    """Shards whose download, by another process, was not waited for because it makes no
    progress."""

    quarantined: int = 0
    """Shards whose bytes were wrong, as found by a hash or by a reader."""

    refetches: int = 0
    """Shards that were fetched again because their bytes were wrong or the object had changed."""

    replaced: int = 0
    """Shards that were fetched, without a hash, in another version than the index is of."""

    failures: int = 0
    """Shards that could not be fetched at all."""

    cache_errors: Counter[str] = field(default_factory=Counter)
    """Errors of the cache's disk by their names, such as "ENOSPC"."""

    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **counts: float) -> None:
        """Add to counters by their names."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def add_one(self, name: str) -> int:
        """Add one to a counter; returns what it was before."""
        with self._lock:
            before: int = getattr(self, name)
            setattr(self, name, before + 1)
        return before

    def counts(self) -> dict[str, float]:
        """Return all counters but the disk errors, by their names, as `add` takes them."""
        with self._lock:
            return {name: getattr(self, name) for name in _COUNTERS}

    def cache_error(self, name: str) -> int:
        """Count an error of the cache's disk; returns how many of its kind there were before."""
        with self._lock:
            self.disk_errors += 1
            self.cache_errors[name] += 1
            return self.cache_errors[name] - 1

    def __post_init__(self) -> None:
        _all.add(self)

    def after_fork(self) -> None:
        """Replace the lock, which another thread may have held when this process was forked."""
        self._lock = threading.Lock()


_COUNTERS = [one.name for one in fields(CacheMetrics) if one.type in (int, float)]

_all: "weakref.WeakSet[CacheMetrics]" = weakref.WeakSet()


def _after_fork() -> None:
    for metrics in list(_all):
        metrics.after_fork()


os.register_at_fork(after_in_child=_after_fork)
