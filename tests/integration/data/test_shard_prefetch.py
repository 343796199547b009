"""What is fetched ahead: the shards that this rank reads, up to the end; no thread dies of it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event

import pytest

from data import Dataset, Loader, NodeStore, Sources, StreamingDataset, build_index, mixed
from data.cache.files.cache_entry import ShardRef
from data.index.manifest import NAME, Manifest
from data.order.sample_order import OrderOptions
from data.read.batches import shard_prefetch
from data.read.sample_stream import SingleStream
from tests.integration.service.service_nodes import until
from tests.services.range_server import RangeServer
from tests.unit.data.tars import write_tar

SHARDS, EACH, WORLD = 16, 32, 4


@pytest.fixture
def manifests(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[Manifest]:
    """Two, of shards at a server, whose indexes are kept on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    found = []
    for name in "ab":
        urls = []
        for shard in range(SHARDS):
            tar = tmp_path / f"{name}{shard:02d}.tar"
            write_tar(tar, [(f"{name}{shard:02d}-{i:02d}.txt", b"x") for i in range(EACH)])
            urls.append(server.put(f"/{name}{shard:02d}.tar", tar.read_bytes()))
        (tmp_path / name).mkdir()
        found.append(build_index(urls, tmp_path / name / NAME, source=Sources()))
    server.seen.clear()
    return found


def fetched(server: RangeServer) -> set[str]:
    return {path for path, _ in server.seen if path.endswith(".tar")}


def has_fetched(server: RangeServer, count: int) -> bool:
    return len(fetched(server)) >= count


def test_a_pass_of_a_rank_fetches_the_shards_of_its_streams(
    server: RangeServer, manifests: list[Manifest], tmp_path: Path
) -> None:
    """Of the 16 shards, each a stream of its own, four; and none of the pass after it."""
    with NodeStore(tmp_path / "cache", 10**9, free_reserve=0) as store:
        dataset = StreamingDataset(
            Dataset(manifests[0], store),
            streams=SHARDS,
            window=1,
            rank=1,
            world_size=WORLD,
            global_batch=SHARDS,
            threads=1,
        )
        keys = [sample["__key__"] for sample in dataset]
    assert len(keys) == SHARDS * EACH // WORLD
    assert fetched(server) == {f"/{key[:3]}.tar" for key in keys}
    assert len(fetched(server)) == SHARDS // WORLD


def test_a_rank_of_a_mixture_fetches_its_part_of_each_dataset(
    server: RangeServer, manifests: list[Manifest], tmp_path: Path
) -> None:
    with NodeStore(tmp_path / "cache", 10**9, free_reserve=0) as store:
        both = mixed(
            [Dataset(manifest, store) for manifest in manifests],
            [1, 1],
            streams=SHARDS,
            window=1,
        )
        loader = Loader(both, global_batch=512, rank=1, world_size=WORLD, prefetch=1, downloads=2)
        keys = [key for batch in islice(loader, 4) for key in batch.keys]
        loader.close()
    read = {f"/{key[:3]}.tar" for key in keys}
    assert read <= fetched(server)
    its = sum(len(streams) for streams in both.streams_of(1, WORLD, 512))
    assert len(fetched(server)) <= its <= 2 * SHARDS // 2, "each stream is a shard here"


def test_shards_that_are_read_make_room_for_the_next(
    server: RangeServer, manifests: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were open for as long as the process had descriptors, and so could not be evicted: all
    samples of all later shards were requests of their own."""
    monkeypatch.setattr(shard_prefetch, "_AGAIN_S", 0.05)
    monkeypatch.setattr(shard_prefetch, "_TICK_S", 0.01)
    manifest = manifests[0]
    room = int(3.5 * manifest.bytes.max())
    with NodeStore(tmp_path / "cache", room, free_reserve=0) as store:
        dataset = Dataset(manifest, store)
        loader = Loader(
            dataset, global_batch=EACH, epochs=1, streams=1, window=1, threads=0, downloads=1
        )
        for number, _ in enumerate(loader, start=1):
            ahead = min(SHARDS, number + 2)
            until(partial(has_fetched, server, ahead), "the next ones are fetched")
        assert store.metrics.evictions >= SHARDS - 3
        loader.close()
    requests = Counter(path for path, _ in server.seen)
    assert max(requests.values()) < EACH // 2, "a read may overtake a download; few of them do"


class Recorded(NodeStore):
    """Records when each shard is needed: by the plan, and by who has it fetched."""

    planned: dict[str, float]
    fetched: dict[str, float]

    def publish_plan(
        self, uses: Sequence[tuple[ShardRef | str, float]], *, since_s: float | None = None
    ) -> None:
        assert since_s is not None
        self.planned = {str(url): since_s + in_s for url, in_s in uses}

    def prefetch(self, ref: ShardRef, *, when_s: float | None = None) -> bool:
        assert when_s is not None
        self.fetched[ref.url] = time.monotonic() + when_s
        return True


def test_no_change_of_speed_has_a_shard_evict_one_that_is_read_before_it(
    manifests: list[Manifest], tmp_path: Path
) -> None:
    """Each was needed as soon as it was told by the speed at that moment, and the others as soon as
    by the plan, which was some seconds older."""
    store = Recorded(tmp_path / "cache", 10**9, free_reserve=0)
    with store:
        store.fetched = {}
        stream = SingleStream.of(Dataset(manifests[0], store), OrderOptions(streams=1, window=1))
        at = iter((0, 0, *range(EACH - 1, SHARDS * EACH)))
        ahead = shard_prefetch._PrefetchState(stream, at.__next__, None, None, Event(), depth=8)
        for _ in range(8):
            ahead._step()
        assert len(store.fetched) == 8
        for url, needed_s in store.fetched.items():
            assert needed_s >= store.planned[url] - 1e-6


def test_a_shard_that_is_read_takes_the_place_of_one_that_is_overdue_after_it(
    server: RangeServer, manifests: list[Manifest], tmp_path: Path
) -> None:
    """All samples of it were requests of their own, where reads are slower than was planned."""
    manifest = manifests[0]
    with NodeStore(tmp_path / "cache", int(3.5 * manifest.bytes.max()), free_reserve=0) as store:
        one, *others = (Dataset(manifest, store).ref(shard) for shard in range(4))
        for ref in others:
            assert store.prefetch(ref)
        store.publish_plan([(ref, number - 4.0) for number, ref in enumerate((one, *others))])
        with store.open(one) as shard:
            until(lambda: bool(shard.pread(0, 1)) and shard.local, "it is in the cache")
        assert store.metrics.evictions == 1
        assert store.prefetch(others[0])
        assert store.metrics.downloads == 4, "the last one was evicted"


def test_a_shard_that_is_fetched_ahead_is_needed_no_sooner_than_the_newest_plan_says(
    manifests: list[Manifest], tmp_path: Path
) -> None:
    """One that was chosen before the plan was published again, where reads have become slower."""
    manifest = manifests[0]
    with NodeStore(tmp_path / "cache", int(1.5 * manifest.bytes.max()), free_reserve=0) as store:
        one, two = (Dataset(manifest, store).ref(shard) for shard in range(2))
        assert store.prefetch(one)
        store.publish_plan([(one, 5000.0), (two, 6000.0)])
        assert not store.prefetch(two, when_s=4000.0)
        store.publish_plan([(one, 5000.0), (two, 3000.0)])
        assert store.prefetch(two, when_s=4000.0)


def test_a_shard_that_waited_for_room_until_it_was_read_is_not_fetched(
    manifests: list[Manifest], tmp_path: Path
) -> None:
    with NodeStore(tmp_path / "cache", 10**9, free_reserve=0) as store:
        stream = SingleStream.of(Dataset(manifests[0], store), OrderOptions(streams=1, window=1))
        ahead = shard_prefetch._PrefetchState(
            stream, iter((0, 0, EACH)).__next__, None, None, Event(), depth=8
        )
        first = ahead._next()
        assert first is not None
        ahead._waiting.append(first)
        second = ahead._next()
        assert second is not None
        assert second[1].first == EACH


def test_which_datasets_have_to_make_room(
    manifests: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of small samples whose cache is smaller than all that is read through it."""
    total = int(manifests[0].bytes.sum())
    with (
        NodeStore(tmp_path / "cache", 2 * total - 1, free_reserve=0) as store,
        NodeStore(tmp_path / "none", 0) as none,
    ):
        one, two = (Dataset(manifest, store) for manifest in manifests)
        assert shard_prefetch.evicting_datasets([one]) == set()
        assert shard_prefetch.evicting_datasets([one, two]) == {0, 1}
        assert shard_prefetch.evicting_datasets([Dataset(manifests[0], none)]) == set()
    monkeypatch.setattr(shard_prefetch, "_SMALL_BYTES", total // (SHARDS * EACH) - 1)
    assert shard_prefetch.evicting_datasets([one, two]) == set()


def test_shards_that_are_open_are_passed_over_up_to_the_depth(
    manifests: list[Manifest], tmp_path: Path
) -> None:
    """The uses of a stream have no end."""
    with NodeStore(tmp_path / "cache", 10**9, free_reserve=0) as store:
        dataset = Dataset(manifests[0], store)
        stream = SingleStream.of(dataset, OrderOptions(streams=2, window=1))
        for shard in range(SHARDS):
            dataset.read(shard * EACH)
        ahead = shard_prefetch._PrefetchState(stream, lambda: 0, None, None, Event(), depth=5)
        assert ahead._next() is None
        assert sum(use.first > 0 for _, use in ahead._running) == 5


class Broken(NodeStore):
    """Fails where nobody has thought of it, once."""

    failures = 1

    def publish_plan(
        self, uses: Sequence[tuple[ShardRef | str, float]], *, since_s: float | None = None
    ) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("a disk of a new kind")
        super().publish_plan(uses, since_s=since_s)


def test_a_failure_ahead_is_told_and_the_thread_goes_on(
    server: RangeServer,
    manifests: list[Manifest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The only thread there is: all shards are fetched all the same."""
    monkeypatch.setattr(shard_prefetch, "_AGAIN_S", 0.05)
    with (
        caplog.at_level(logging.WARNING),
        Broken(tmp_path / "cache", 10**9, free_reserve=0) as store,
    ):
        dataset = Dataset(manifests[0], store)
        loader = Loader(dataset, global_batch=1, downloads=1, threads=0, streams=SHARDS, window=1)
        iterator = iter(loader)
        until(lambda: len(fetched(server)) == SHARDS, "all are fetched")
        del iterator
        loader.close()
    assert len(fetched(server)) == SHARDS
    assert "RuntimeError: a disk of a new kind" in caplog.text
