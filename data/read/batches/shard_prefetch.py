"""Prefetching of shards before their samples are needed; the cache is given the next-use plan."""

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import NodeStore
from data.errors import DataError
from data.order.shard_uses import ShardUse
from data.read.dataset import Dataset
from data.read.sample_stream import Reads, SampleStream

PLANNED = 2048
"""The number of shards whose next use is published in the plan."""
ENOUGH = 3
"""The shards of a cache, for each that is read at a time, with which it answers nearly all reads:
those that are read, those that come next, and those that are being fetched. See
`benchmarks.data.readers.sample_requests`."""
_CHECKED_FILES = 64  # shards that are checked, of those that are files
_AGAIN_S = 5.0
_TICK_S = 0.2
_SMALL_BYTES = 64 << 10  # a source takes longer to find a sample of this size than to send it
_GUESS_S = 1e-3  # seconds per position, until the speed is known

_log = logging.getLogger(__name__)


class ShardPrefetcher:
    """Fetches shards ahead of the position in threads, until it is closed or garbage-collected.

    Args:
        position: returns where the consumer is; must not refer to this object.
        streams: of each dataset, the streams that this rank reads; None: all.
        end: the first position that is never read; None: there is none.
        downloads: number of simultaneous downloads.
        depth: shards beyond those in use now that may be fetched.
    """

    def __init__(
        self,
        stream: SampleStream,
        position: Callable[[], int],
        streams: Reads,
        *,
        end: int | None = None,
        downloads: int = 4,
        depth: int = 16,
    ) -> None:
        self._closing = threading.Event()
        walk = _PrefetchState(stream, position, streams, end, self._closing, depth)
        for number in range(downloads):  # of no pool: Python would wait for its threads at exit
            name = f"hpckit-data-ahead_{number}"
            threading.Thread(target=walk.work, name=name, daemon=True).start()
        self._end = weakref.finalize(self, self._closing.set)

    def close(self) -> None:
        """Stop; a download that is under way continues for its readers."""
        self._end()


def has_remote_shards(stream: SampleStream) -> bool:
    """Return whether any shard is not read in place; of files that may be copied, some are
    checked."""
    for dataset in stream.datasets:
        urls, store = dataset.manifest.urls, dataset.store
        if urls.are_plain and not store.copies_files:
            continue
        step = max(1, len(urls) // _CHECKED_FILES) if urls.are_plain else 1
        if any(not store.is_in_place(url) for url in urls[::step]):
            return True
    return False


def check_caches(stream: SampleStream, reads: Sequence[Collection[int]]) -> None:
    """Warn where each sample would be a request: where a cache is smaller than the shards that some
    streams read at a time, and where small samples are shuffled without one.

    Args:
        reads: of each dataset, the streams.
    """
    live: dict[NodeStore, float] = {}
    for dataset, order, of in zip(stream.datasets, stream.orders, reads, strict=True):
        sizes = dataset.manifest.bytes
        if order.shuffle and not dataset.store.budget_bytes:
            _check_sample_size(dataset)
        shards = min(len(sizes), order.window * len(of))
        live[dataset.store] = live.get(dataset.store, 0.0) + shards * float(sizes.mean())
    for store, size in live.items():
        if 0 < store.budget_bytes < size:
            _log.warning(
                "the cache %s may hold %.3g GB, but the shards that this rank reads at a time have "
                "%.3g GB: raise its bytes, or use fewer streams or a smaller window",
                store.folder,
                store.budget_bytes / 1e9,
                size / 1e9,
            )


def evicting_datasets(datasets: Sequence[Dataset]) -> set[int]:
    """Return the numbers of the datasets whose shards have to make room for each other: their
    samples are small, so that each should come from a cache, and their cache is smaller than all
    shards that are read through it.

    Of large samples, which a source sends in about the time that it takes to find them, the first
    shards stay in the cache, so that it answers more of each epoch.
    """
    needed: dict[NodeStore, int] = {}
    for dataset in datasets:
        needed[dataset.store] = needed.get(dataset.store, 0) + int(dataset.manifest.bytes.sum())
    return {
        number
        for number, dataset in enumerate(datasets)
        if 0 < dataset.store.budget_bytes < needed[dataset.store]
        and _sample_bytes(dataset) <= _SMALL_BYTES
    }


def _sample_bytes(dataset: Dataset) -> float:
    """Return the mean bytes of a sample in its shard."""
    return float(dataset.manifest.bytes.sum()) / max(1, len(dataset))


def _check_sample_size(dataset: Dataset) -> None:
    """Warn of a source that takes longer to find a sample than to send it."""
    mean = _sample_bytes(dataset)
    if mean <= _SMALL_BYTES and not dataset.store.is_in_place(dataset.manifest.urls[0]):
        _log.warning(
            "%s: each of its samples, of %.3g KB on average, is a request, as they are shuffled "
            "and there is no cache: with cache= and cache_bytes= shards are fetched whole. A cache "
            "of %d x streams x window shards is enough, with streams=4 and window=1 %.2g GB, in a "
            "folder that may be in memory, such as /dev/shm; fewer shards are mixed then",
            dataset.manifest.place,
            mean / 1e3,
            ENOUGH,
            ENOUGH * 4 * float(dataset.manifest.bytes.mean()) / 1e9,
        )


class _Pace(NamedTuple):
    """When positions are read, as was foreseen at one moment. The plan and the shards that are
    fetched take their times from the same one: otherwise a change of speed would let a shard evict
    one that is read before it."""

    at: int
    at_s: float
    """The moment, by the monotonic clock, at which `at` was the next position."""
    each_s: float

    def due_s(self, position: int) -> float:
        """Return when a position is read, by the monotonic clock."""
        return self.at_s + max(0, position - self.at) * self.each_s


class _PrefetchState:
    """The state that the threads share."""

    def __init__(
        self,
        stream: SampleStream,
        position: Callable[[], int],
        streams: Reads,
        end: int | None,
        closing: threading.Event,
        depth: int,
    ) -> None:
        self._stream, self._position, self._streams = stream, position, streams
        self._end, self._closing, self._depth = end, closing, depth
        self._lock = threading.Lock()
        self._start = self._pace = _Pace(position(), time.monotonic(), _GUESS_S)
        self._uses: Iterator[tuple[int, ShardUse]] | None = self._uses_from(self._start.at)
        self._failures: set[str] = set()
        # uses by number of dataset: fetched and not yet read to the end; and without room so far
        self._running: list[tuple[int, ShardUse]] = []
        self._waiting: deque[tuple[int, ShardUse]] = deque()
        self._evicts = evicting_datasets(stream.datasets)
        self._published_s = float("-inf")

    def work(self) -> None:
        """Fetch what is needed next, as often as there is room for it, in one of the threads."""
        while not self._closing.is_set():
            try:
                pause_s = self._step()
            except DataError as error:  # the read that needs the shard raises and reports it
                _log.info("a shard could not be prefetched: %s", error)
            except Exception as error:  # noqa: BLE001 (logged; a thread must not end)
                self._log_failure(error)
                self._closing.wait(_AGAIN_S)
            else:
                self._closing.wait(pause_s)

    def _step(self) -> float:
        """Fetch one shard; returns the seconds until there may be something to do again."""
        found = self._next()
        if found is None:
            return _TICK_S
        dataset, use = found
        ref = self._stream.datasets[dataset].ref(use.shard)
        store = self._stream.datasets[dataset].store
        if store.prefetch(ref, when_s=self._pace.due_s(use.first) - time.monotonic()):
            return 0.0
        self._waiting.append(found)
        return _AGAIN_S / 5

    def _log_failure(self, error: Exception) -> None:
        """Log an error and start over: without prefetching, reads are only slower."""
        message = f"{type(error).__name__}: {error}"
        level = logging.INFO if message in self._failures else logging.WARNING
        _log.log(level, "prefetching of shards pauses for a moment: %s", message, exc_info=error)
        self._failures.add(message)
        with self._lock:
            self._uses = None  # an iterator that has failed is over

    def _next(self) -> tuple[int, ShardUse] | None:
        """Return the next use to prefetch; None if enough shards are being fetched."""
        with self._lock:
            at = self._position()
            self._publish_plans(at)
            self._release_finished(at)
            while self._waiting:
                found = self._waiting.popleft()
                if found[1].last >= at and not self._is_open(*found):
                    return found  # the others are read from their source by now, or were
            self._uses = self._uses or self._uses_from(at)
            while sum(use.first > at for _, use in self._running) < self._depth:
                if (ahead := next(self._uses, None)) is None:
                    return None
                self._running.append(ahead)
                if ahead[1].last >= at and not self._is_open(*ahead):
                    return ahead
            return None

    def _is_open(self, number: int, use: ShardUse) -> bool:
        """Return whether a reader has opened the shard, and so decided how it is read."""
        found = self._stream.datasets[number].open_shards.get(use.shard)
        return found is not None and found.is_open

    def _release_finished(self, at: int) -> None:
        """Close the files of shards that were read to their end before a position, if they have to
        make room: an open one could not be evicted for the next."""
        finished = [found for found in self._running if found[1].last < at]
        if not finished:
            return
        self._running = [found for found in self._running if found[1].last >= at]
        live = {(number, use.shard) for number, use in self._running}
        for number, use in finished:
            if number in self._evicts and (number, use.shard) not in live:
                self._stream.datasets[number].release(use.shard)

    def _publish_plans(self, at: int) -> None:
        """Publish the next-use plan of each store that is read from."""
        now_s = time.monotonic()
        if now_s - self._published_s < _AGAIN_S:
            return
        self._published_s, pace = now_s, self._pace_at(at, now_s)
        plans: dict[NodeStore, list[tuple[ShardRef | str, float]]] = {}
        for number, use in islice(self._next_uses(at), PLANNED):
            dataset = self._stream.datasets[number]
            planned = (dataset.manifest.urls[use.shard], pace.due_s(use.first) - now_s)
            plans.setdefault(dataset.store, []).append(planned)
        for store, plan in plans.items():
            store.publish_plan(plan, since_s=now_s)
        self._pace = pace

    def _next_uses(self, at: int) -> Iterator[tuple[int, ShardUse]]:
        """Yield the next use of each shard, as long as further shards may come: few shards recur
        forever."""
        seen: set[tuple[int, int]] = set()
        shards = sum(len(dataset.manifest) for dataset in self._stream.datasets)
        end = at + self._stream.samples
        for dataset, use in islice(self._uses_from(at), 4 * PLANNED):
            if use.first >= end or len(seen) == shards or self._closing.is_set():
                return
            if (dataset, use.shard) not in seen:
                seen.add((dataset, use.shard))
                yield dataset, use

    def _uses_from(self, at: int) -> Iterator[tuple[int, ShardUse]]:
        """Return the uses from `at` on, up to the end."""
        end = self._end
        uses = self._stream.ahead(at, self._streams)
        return uses if end is None else takewhile(lambda found: found[1].first < end, uses)

    def _pace_at(self, at: int, now_s: float) -> _Pace:
        """Return the pace at the speed so far."""
        passed = at - self._start.at
        each_s = (now_s - self._start.at_s) / passed if passed > 0 else _GUESS_S
        return _Pace(at, now_s, each_s)
