"""A loader over a cold cache: what it waits for, and what it does not."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from data import (
    DamagedShardError,
    Dataset,
    Loader,
    NodeStore,
    ShardWriter,
    build_index,
    open_dataset,
)
from data.index.manifest import NAME, Manifest, make_manifest
from data.index.manifest_rows import ShardRow, row_of
from data.index.shard import sidecar
from data.read.bad_samples import Policy
from data.source.host_limits import Limits
from data.source.protocol import short_tag
from data.source.retry import SourceRetryPolicy
from data.source.sources import Sources
from tests.integration.cli.data_commands import EACH, SHARDS, SIZE, write_shards
from tests.services.range_server import PIECE, Gate, RangeServer

QUICK = SourceRetryPolicy(budget_s=0.5, first_s=0.01, longest_s=0.05, least_tries=2)


@pytest.fixture
def manifest(
    server: RangeServer, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Manifest:
    """Of shards whose indexes are kept on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    tars = sorted(local.glob("*.tar"))
    urls = [server.put(f"/{tar.name}", tar.read_bytes()) for tar in tars]
    return build_index(urls, tmp_path / NAME, source=Sources())


def one_of_each(dataset: Dataset) -> Loader:
    """Its first batch has a sample of every shard; only one thread makes it."""
    return Loader(
        dataset, global_batch=SHARDS, streams=SHARDS, window=1, prefetch=1, threads=1, downloads=1
    )


def test_all_shards_of_a_batch_are_begun_before_one_is_waited_for(
    server: RangeServer, manifest: Manifest, tmp_path: Path
) -> None:
    held = Gate(server, until=SHARDS)
    with NodeStore(tmp_path / "cache", 10**9, free_reserve=0, read_growing=False) as store:
        loader = one_of_each(Dataset(manifest, store))
        assert len(next(iter(loader)).keys) == SHARDS
        assert (held.opened, held.expired) == (True, False)
        loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_read_past_a_small_cache_counts_as_download_and_is_told(
    server: RangeServer,
    manifest: Manifest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    workers: int,
) -> None:
    with NodeStore(tmp_path / "cache", 2000, free_reserve=0) as store:
        loader = Loader(Dataset(manifest, store), global_batch=30, epochs=1, workers=workers)
        assert sum(len(batch.keys) for batch in loader) == SHARDS * EACH
        usage = loader.usage
        loader.close()
    # samples of a batch that lie side by side are one request
    assert 0 < store.metrics.bypasses <= SHARDS * EACH
    assert store.metrics.bytes_fetched >= SHARDS * EACH * SIZE
    assert 0 < usage.past_s <= usage.download_s
    past = replace(usage, read_s=usage.past_s, download_s=usage.past_s, transform_s=0.0)
    told = replace(past, wait_s=1.0, elapsed_s=1.0).diagnosis()
    assert told.startswith("waiting for downloads")
    assert "the cache, which is too small" in told
    assert "the shards that this rank reads at a time have" in caplog.text
    warned = [one for one in caplog.records if "bytes of the cache" in one.getMessage()]
    assert len(warned) == (1 if workers == 0 else 0), "those of workers are in their own logs"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("errors", ["raise", "skip"])
def test_an_epoch_does_not_end_before_its_bytes_are_known_to_be_right(
    server: RangeServer, tmp_path: Path, workers: int, errors: Policy
) -> None:
    """All samples are there early, headers and all; the hash is seen when the rest has come."""
    _, row, rest_may_come = damaged_on_its_way(server, tmp_path)
    with NodeStore(tmp_path / "cache", 10**9, free_reserve=0) as store:
        dataset = Dataset(make_manifest([row]), store, "headers")
        loader = Loader(dataset, global_batch=5, epochs=1, workers=workers, errors=errors)
        batches = iter(loader)
        assert len([key for _ in range(EACH // 5) for key in next(batches).keys]) == EACH
        rest_may_come.set()
        with pytest.raises(DamagedShardError, match=r"x\.tar: .* in earlier batches"):
            next(batches)
        loader.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("is_mended", [True, False])
def test_where_contents_are_compared_nothing_wrong_is_given(
    server: RangeServer, tmp_path: Path, workers: int, is_mended: bool
) -> None:
    """So no batch is to be taken back: what is damaged on its way comes once more, and if it is so
    at its source, it is left out with what is read after it was found."""
    body, row, rest_may_come = damaged_on_its_way(server, tmp_path)
    with NodeStore(tmp_path / "cache", 10**9, free_reserve=0) as store:
        dataset = Dataset(make_manifest([row]), store, "content")
        loader = Loader(
            dataset,
            global_batch=5,
            epochs=1,
            workers=workers,
            errors="skip",
            most_errors_in_a_row=EACH,
        )
        keys: list[str] = []
        for batch in loader:
            keys += batch.keys
            for key, sample in zip(batch.keys, batch.data, strict=True):
                assert sample["bin"] == int(key).to_bytes(2, "little") * (SIZE // 2)
            if is_mended:
                server.put("/x.tar", body)
            rest_may_come.set()
        loader.close()
        store.settle()
    every = [f"{number:03}" for number in range(EACH)]
    if is_mended:
        assert sorted(keys) == every
    else:
        assert {"003"} <= set(every) - set(keys) < set(every)


def damaged_on_its_way(
    server: RangeServer, tmp_path: Path
) -> tuple[bytes, ShardRow, threading.Event]:
    """What it is, and its row in a manifest; its server has it with a bit of sample 3 flipped, and
    does not give what comes behind the samples before the event."""
    (shard,) = write_shards(tmp_path / "shards", shards=1).glob("*.tar")
    body = shard.read_bytes() + bytes(300_000)
    shard.write_bytes(body)
    index = build_index(shard, tmp_path / NAME, hash=True).open_shard(0)
    flipped = index.members(3)[0].offset
    damaged = body[:flipped] + bytes([body[flipped] ^ 1]) + body[flipped + 1 :]
    rest_may_come = threading.Event()
    url = server.put("/x.tar", damaged, held_from=PIECE * 3, go_on=rest_may_come)
    row = row_of(url, index)
    sidecar.keep_at(sidecar.in_folder(url, row.bytes, short_tag(row.tag), None), url, index)
    return body, row, rest_may_come


def test_equal_names_over_one_cache_are_not_mixed_up(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    for name in "ab":
        with ShardWriter(tmp_path / name / "s-%02d.tar", max_samples=EACH) as writer:
            for number in range(2 * EACH):
                writer.write({"__key__": f"{number:03d}", "txt": f"{name}{number}".encode()})
        for path in (tmp_path / name).iterdir():
            server.put(f"/{name}/{path.name}", path.read_bytes())
    for _ in range(2):  # cold, then warm
        for name in "ab":
            url = f"{server.url}/{name}/"
            dataset = open_dataset(url, cache=tmp_path / "cache", cache_bytes=10**9)
            loader = Loader(dataset, global_batch=10, epochs=1, shuffle=False)
            found = [sample["txt"].decode() for batch in loader for sample in batch.data]
            assert found == [f"{name}{number}" for number in range(2 * EACH)]
            loader.close()


def test_a_first_batch_does_not_wait_for_whole_shards(
    server: RangeServer, manifest: Manifest, tmp_path: Path
) -> None:
    """All that may be whole shards are held: the samples come by requests of their own."""
    held = Gate(server)
    sources = Sources(retry=QUICK, limits=Limits(requests=4))
    with NodeStore(tmp_path / "cache", 10**9, sources=sources, free_reserve=0) as store:
        loader = one_of_each(Dataset(manifest, store))
        assert len(next(iter(loader)).keys) == SHARDS
        held.wait_for(3)
        assert (held.opened, held.expired, held.count) == (False, False, 3)
        held.open()
        loader.close()


def test_samples_that_are_far_away_are_read_at_the_same_time(
    server: RangeServer, manifest: Manifest, tmp_path: Path
) -> None:
    held, together = Gate(server), threading.Barrier(SHARDS)
    sources = Sources(limits=Limits(requests=2 * SHARDS))
    read = sources.read

    def at_once(url: str, start: int, size: int, tag: str | None = None) -> bytes:
        together.wait(120)
        return read(url, start, size, tag)

    with (
        NodeStore(
            tmp_path / "cache", 10**9, sources=sources, free_reserve=0, wait_bytes=0
        ) as store,
        mock.patch.object(sources, "read", at_once),
    ):
        loader = one_of_each(Dataset(manifest, store))
        batch = next(iter(loader))
        assert [sample["__key__"] for sample in batch.data] == list(batch.keys)
        assert len({sample["__url__"] for sample in batch.data}) == SHARDS
        held.open()
        loader.close()
