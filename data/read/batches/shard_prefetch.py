"""Shards are fetched before their samples are wanted, and the cache knows what is wanted when."""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, takewhile

from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import NodeStore
from data.errors import DataError
from data.order.shard_uses import ShardUse
from data.read.sample_stream import Reads, SampleStream

PLANNED = 2048
"""Shards whose next use the cache is told."""
_ASKED = 64  # of the shards that are files
_AGAIN_S = 5.0
_TICK_S = 0.2
_GUESS_S = 1e-3  # a position, until it is known how fast they pass

_log = logging.getLogger(__name__)


class ShardPrefetcher:
    """Walks ahead of the position in threads, until it is closed or garbage.

    Args:
        position: where the consumer is; must not refer to the walker.
        streams: of each dataset, that this rank reads; None: all.
        end: the first position that is never read; None: there is none.
        downloads: shards that are fetched at the same time.
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
        self._pool = ThreadPoolExecutor(downloads, thread_name_prefix="hpckit-data-ahead")
        walk = _Walk(stream, position, streams, end, self._closing, depth)
        for _ in range(downloads):
            self._pool.submit(walk.work)
        self._end = weakref.finalize(self, _stop, self._closing, self._pool)

    def close(self) -> None:
        """Stop; a download that is under way goes on for who waits for it."""
        self._end()


def has_remote_shards(stream: SampleStream) -> bool:
    """Whether any shard is not read where it lies; of files that may be copied, some are asked."""
    for dataset in stream.datasets:
        urls, store = dataset.manifest.urls, dataset.store
        if urls.are_plain and not store.copies_files:
            continue
        step = max(1, len(urls) // _ASKED) if urls.are_plain else 1
        if any(not store.is_in_place(url) for url in urls[::step]):
            return True
    return False


def _stop(closing: threading.Event, pool: ThreadPoolExecutor) -> None:
    closing.set()
    pool.shutdown(wait=False, cancel_futures=True)


class _Walk:
    """What the threads share."""

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
        self._begun = (position(), time.monotonic())
        self._uses: Iterator[tuple[int, ShardUse]] | None = self._ahead(self._begun[0])
        self._failures: set[str] = set()
        self._running: list[ShardUse] = []  # fetched, and not over
        self._told_s = float("-inf")

    def work(self) -> None:
        """One thread: fetch what comes next, as often as there is room for it."""
        while not self._closing.is_set():
            try:
                pause_s = self._step()
            except DataError as error:  # whoever reads it meets it, and says so
                _log.info("ahead of its use: %s", error)
            except Exception as error:  # noqa: BLE001 (told; or nothing would be fetched any more)
                self._tell_failure(error)
                self._closing.wait(_AGAIN_S)
            else:
                self._closing.wait(pause_s)

    def _step(self) -> float:
        """Fetch one shard; seconds until there is something to do again."""
        found = self._next()
        if found is None:
            return _TICK_S
        dataset, use = found
        ref = self._stream.datasets[dataset].ref(use.shard)
        store = self._stream.datasets[dataset].store
        return 0.0 if store.prefetch(ref, when_s=self._in_s(use.first)) else _AGAIN_S  # no room yet

    def _tell_failure(self, error: Exception) -> None:
        """A reader does without what is ahead, only slower: so it is told, and tried again."""
        said = f"{type(error).__name__}: {error}"
        level = logging.INFO if said in self._failures else logging.WARNING
        _log.log(level, "nothing is fetched ahead for a moment: %s", said, exc_info=error)
        self._failures.add(said)
        with self._lock:
            self._uses = None  # a walk that has failed is over

    def _next(self) -> tuple[int, ShardUse] | None:
        """The next use to see to; None if enough is on its way."""
        with self._lock:
            at = self._position()
            self._tell(at)
            self._running = [use for use in self._running if use.last >= at]
            waiting = sum(use.first > at for use in self._running)
            if waiting >= self._depth:
                return None
            self._uses = self._uses or self._ahead(at)
            found = next(self._uses, None)
            if found is not None:
                self._running.append(found[1])
            return found

    def _tell(self, at: int) -> None:
        """Publish what is used next, of each store that is read from."""
        if time.monotonic() - self._told_s < _AGAIN_S:
            return
        self._told_s = time.monotonic()
        plans: dict[NodeStore, list[tuple[ShardRef | str, float]]] = {}
        for number, use in islice(self._next_uses(at), PLANNED):
            dataset = self._stream.datasets[number]
            told = (dataset.manifest.urls[use.shard], self._in_s(use.first))
            plans.setdefault(dataset.store, []).append(told)
        for store, plan in plans.items():
            store.publish_plan(plan)

    def _next_uses(self, at: int) -> Iterator[tuple[int, ShardUse]]:
        """Each shard's next one, as long as others may come: few shards recur for ever."""
        seen: set[tuple[int, int]] = set()
        shards = sum(len(dataset.manifest) for dataset in self._stream.datasets)
        end = at + self._stream.samples
        for dataset, use in islice(self._ahead(at), 4 * PLANNED):
            if use.first >= end or len(seen) == shards or self._closing.is_set():
                return
            if (dataset, use.shard) not in seen:
                seen.add((dataset, use.shard))
                yield dataset, use

    def _ahead(self, at: int) -> Iterator[tuple[int, ShardUse]]:
        """The uses from `at` on that ever come."""
        end = self._end
        uses = self._stream.ahead(at, self._streams)
        return uses if end is None else takewhile(lambda found: found[1].first < end, uses)

    def _in_s(self, first: int) -> float:
        """Seconds until a position is read, at the speed so far."""
        at, (begun, begun_s) = self._position(), self._begun
        passed = at - begun
        each_s = (time.monotonic() - begun_s) / passed if passed > 0 else _GUESS_S
        return max(0, first - at) * each_s
