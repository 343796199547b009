"""Large shards are downloaded by several ranges at a time, and only whole shards are published."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import obstore
import pytest
from blake3 import blake3

from data.cache import cache_maintenance
from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import NodeStore
from data.errors import DamagedShardError, DataError, FetchError
from data.source.host_limits import Limits
from data.source.http import HttpSource
from data.source.parallel_ranges import FIRST_BYTES
from data.source.retry import SourceRetryPolicy
from data.source.sources import Sources
from tests.integration.data.shard_reader import body_of
from tests.services.faults import SLOW_DOWN, FlipByte, ResetDownload, Throttle, Together
from tests.services.fixtures import FaultyS3
from tests.services.range_server import RangeServer, range_server

MIB = 1 << 20
SIZE = FIRST_BYTES + 4 * MIB + 1
QUICK = SourceRetryPolicy(budget_s=5.0, first_s=0.01, longest_s=0.05)
BODY = body_of("x.tar", SIZE)


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as running:
        running.put("/x.tar", BODY)
        yield running


def opened(folder: Path, sources: Sources) -> NodeStore:
    return NodeStore(folder / "c", 10**9, sources=sources, free_reserve=0, read_growing=False)


def in_s3(faulty: FaultyS3, limits: Limits | None = None) -> tuple[Sources, ShardRef]:
    obstore.put(faulty.direct.store(), "x.tar", BODY)
    sources = Sources({"s3": faulty.place.options}, retry=QUICK, limits=limits)
    return sources, ShardRef(f"{faulty.place.url}/x.tar", SIZE, blake3(BODY).hexdigest())


def range_requests(faulty: FaultyS3) -> int:
    return sum(request.method == "GET" for request in faulty.proxy.seen)


def read_all(store: NodeStore, ref: ShardRef, body: bytes = BODY) -> None:
    assert store.prefetch(ref)
    with store.open(ref) as shard:
        assert shard.pread(0, len(body)) == body
    assert [right for _, right in cache_maintenance.verified(store.folder)] == [True]


def test_all_ranges_after_the_first_come_at_the_same_time(
    faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    sources, ref = in_s3(faulty_s3)
    # each body waits for the three others
    faulty_s3.proxy.inject(Together(asyncio.Barrier(4)), method="GET", skip=1, times=4)
    with opened(tmp_path, sources) as store:
        read_all(store, ref)
        assert store.metrics.bytes_fetched == SIZE
    assert range_requests(faulty_s3) == 5


def test_a_slow_connection_is_one_of_several(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    sources, ref = in_s3(faulty_s3)
    faulty_s3.proxy.inject(Throttle(20e6), method="GET")
    with opened(tmp_path, sources) as store:
        read_all(store, ref)
    assert range_requests(faulty_s3) == 5


def test_a_range_that_breaks_goes_on_where_it_broke(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    sources, ref = in_s3(faulty_s3)
    faulty_s3.proxy.inject(ResetDownload(MIB // 2), method="GET", skip=2, times=1)
    faulty_s3.proxy.inject(SLOW_DOWN, method="GET", skip=3, times=1)
    with opened(tmp_path, sources) as store:
        read_all(store, ref)
        assert store.metrics.bytes_fetched == SIZE
    assert sources.traffic.retries == 2


def test_a_wrong_byte_of_a_range_is_never_published(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    sources, ref = in_s3(faulty_s3)
    faulty_s3.proxy.inject(FlipByte(5), method="GET", skip=2)
    with opened(tmp_path, sources) as store:
        with pytest.raises(DamagedShardError):
            store.prefetch(ref)
        assert not list(cache_maintenance.verified(store.folder))


@pytest.mark.parametrize("limits", [Limits(ranges=1), Limits(requests=1)])
def test_one_connection_is_enough(faulty_s3: FaultyS3, tmp_path: Path, limits: Limits) -> None:
    sources, ref = in_s3(faulty_s3, limits)
    with opened(tmp_path, sources) as store:
        read_all(store, ref)
    assert range_requests(faulty_s3) == (1 if limits.ranges == 1 else 5)


@pytest.mark.parametrize(
    ("etag", "ranges", "most"),
    [('"1"', False, None), (None, True, None), ('W/"1"', True, None), ('"1"', True, MIB)],
)
def test_a_server_without_right_ranges_or_strong_tags_sends_the_whole_shard(
    server: RangeServer, tmp_path: Path, etag: str | None, ranges: bool, most: int | None
) -> None:
    server.put("/x.tar", BODY, etag=etag)
    server.ranges, server.most = ranges, most
    sources = Sources(retry=QUICK)
    with opened(tmp_path, sources) as store:
        read_all(store, ShardRef(f"{server.url}/x.tar"))
        assert store.metrics.bytes_fetched == SIZE
    assert server.streams[-1] == ("/x.tar", 0)
    assert sources.traffic.retries == 0


@pytest.mark.parametrize("size", [SIZE, FIRST_BYTES // 2])
def test_ranges_of_two_versions_are_never_joined(
    server: RangeServer, tmp_path: Path, size: int
) -> None:
    """The object is replaced while its ranges are read, maybe by one that ends before them: all of
    the new one is fetched."""
    other, lock, count = body_of("other", size), threading.Lock(), 0
    stream_range = HttpSource.stream_range

    def replaced(self: HttpSource, url: str, start: int, end: int, tag: str) -> Iterator[bytes]:
        nonlocal count
        with lock:
            count += 1
            if count == 4:
                server.put("/x.tar", other, etag='"2"')
        return stream_range(self, url, start, end, tag)

    sources = Sources(retry=QUICK)
    with (
        mock.patch.object(HttpSource, "stream_range", replaced),
        opened(tmp_path, sources) as store,
    ):
        read_all(store, ShardRef(f"{server.url}/x.tar"), other)
        assert store.metrics.refetches == 1


def test_a_download_that_was_interrupted_goes_on_by_ranges(
    server: RangeServer, tmp_path: Path
) -> None:
    ref = ShardRef(f"{server.url}/x.tar")
    server.put("/x.tar", BODY[: FIRST_BYTES // 2], more=SIZE - FIRST_BYTES // 2)
    once = SourceRetryPolicy(budget_s=0.0, first_s=0.01, least_tries=1)
    with opened(tmp_path, Sources(retry=once)) as store, pytest.raises(FetchError):
        store.prefetch(ref)
    server.put("/x.tar", BODY)
    with opened(tmp_path, Sources(retry=QUICK)) as store:
        read_all(store, ref)
        assert store.metrics.bytes_resumed > 0
        assert store.metrics.bytes_fetched + store.metrics.bytes_resumed == SIZE


def test_closing_the_store_ends_the_threads_of_ranges(server: RangeServer, tmp_path: Path) -> None:
    go_on, stream_range = threading.Event(), HttpSource.stream_range

    def held(self: HttpSource, url: str, start: int, end: int, tag: str) -> Iterator[bytes]:
        assert start == 0 or go_on.wait(60)
        yield from stream_range(self, url, start, end, tag)

    store = opened(tmp_path, Sources(retry=QUICK))
    with mock.patch.object(HttpSource, "stream_range", held):
        shard = store.open(ShardRef(f"{server.url}/x.tar"))
        wait_for_ranges(run=True)
        store.close()
        go_on.set()
        with pytest.raises(DataError, match="closed"):
            shard.pread(0, SIZE)
        wait_for_ranges(run=False)


def wait_for_ranges(*, run: bool) -> None:
    """Wait until threads read ranges, or until none does."""
    end_s = time.monotonic() + 60
    while run != any(thread.name == "hpckit-range" for thread in threading.enumerate()):
        assert time.monotonic() < end_s
        time.sleep(0.01)
