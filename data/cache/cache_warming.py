"""Warming a cache before a run: whole shards are fetched, several at a time, in the order of their
first use."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import NodeStore
from data.errors import DataError

# between the first uses of two shards, for comparison with other jobs' next-use plans
_APART_S = 1.0


@dataclass
class CacheWarmingReport:
    """The result of warming, as numbers of shards."""

    shards: int = 0
    """Shards that are in the cache now."""
    bytes: int = 0
    in_place: int = 0
    """Shards that are files of this machine and are read in place."""
    left_out: int = 0
    """Shards that do not fit into the cache."""
    errors: list[DataError] = field(default_factory=list)
    """The errors of the shards that could not be fetched."""

    @property
    def complete(self) -> bool:
        return not self.left_out and not self.errors


def warm(
    store: NodeStore,
    refs: Sequence[ShardRef],
    budget_bytes: int,
    *,
    downloads: int = 8,
    cached: Callable[[ShardRef], object] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CacheWarmingReport:
    """Fetch shards into the cache, in the order of their first use, until `budget_bytes` are used
    up.

    Shards fetched here never evict one another, but may evict other content of the cache. Downloads
    that were interrupted before are resumed.

    Args:
        downloads: number of simultaneous downloads.
        cached: called with each shard that is in the cache, from any thread; may raise DataError.
        progress: called with (done, total) shards, from any thread.
    """
    found = CacheWarmingReport()
    wanted: list[ShardRef] = []
    for ref in refs:
        if store.is_in_place(ref.url):
            found.in_place += 1
        else:
            wanted.append(ref)
    fitting = list(_fitting(wanted, budget_bytes))
    found.left_out = len(wanted) - len(fitting)
    store.publish_plan([(ref, number * _APART_S) for number, ref in enumerate(fitting)])
    lock, done = threading.Lock(), len(refs) - len(fitting)

    def fetch(number: int, ref: ShardRef) -> None:
        nonlocal done
        error: DataError | None = None
        kept = False
        try:
            kept = store.prefetch(ref, when_s=number * _APART_S)
            if kept and cached is not None:
                cached(ref)
        except DataError as failure:
            error = failure
        with lock:
            done += 1
            if error is not None:
                found.errors.append(error)
            elif kept:
                found.shards += 1
                found.bytes += ref.bytes or 0
            else:
                found.left_out += 1
            if progress is not None:
                progress(done, len(refs))

    with ThreadPoolExecutor(downloads, thread_name_prefix="hpckit-data-warm") as pool:
        for each in [pool.submit(fetch, number, ref) for number, ref in enumerate(fitting)]:
            each.result()
    return found


def _fitting(refs: Sequence[ShardRef], budget_bytes: int) -> Iterator[ShardRef]:
    """Return the longest prefix of the shards that fits the budget; shards of unknown size are
    included."""
    total = 0
    for ref in refs:
        total += ref.bytes or 0
        if total > budget_bytes:
            return
        yield ref
