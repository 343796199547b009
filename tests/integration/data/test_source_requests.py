"""How often a source is asked: little for a cold shard, and for a warm one not at all."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from unittest import mock

import pytest

from data import Dataset, Loader, build_index, open_dataset, open_manifest
from data.cache.cache_disk import CacheDisk
from data.errors import FetchError
from data.index.manifest import NAME
from data.source.retry import SourceRetryPolicy
from data.source.sources import Sources
from tests.integration.cli.data_commands import EACH, SHARDS, document, serve
from tests.services.range_server import RangeServer, range_server

QUICK = SourceRetryPolicy(budget_s=0.5, first_s=0.01, longest_s=0.05, least_tries=2)


@pytest.fixture(autouse=True)
def _indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))


def opened(place: str | Path, cache: Path) -> Dataset:
    return open_dataset(place, cache=cache, cache_bytes=10**9, sources=Sources(retry=QUICK))


def asked(server: RangeServer) -> int:
    """Requests since the last time."""
    count = len(server.headers)
    server.headers.clear()
    return count


def epoch(dataset: Dataset) -> list[str]:
    loader = Loader(dataset, global_batch=30, epochs=1)
    found = sorted(key for batch in loader for key in batch.keys)
    loader.close()
    return found


def unhashed(server: RangeServer, folder: Path) -> Path:
    """The manifest that `data index` makes by default of URLs with no indexes beside them."""
    forget_indexes(server)
    urls = [server.url + path for path in server.objects]
    build_index(sorted(urls), folder / NAME, source=Sources(retry=QUICK))
    return folder / NAME


def forget_indexes(server: RangeServer, but: str | None = None) -> None:
    for path in [path for path in server.objects if path.endswith(".index")]:
        if path.rpartition("/")[2] != but:
            del server.objects[path]


EVERYTHING = sorted(f"{number:03d}" for number in range(SHARDS * EACH))


@pytest.mark.parametrize("sidecars", [True, False])
def test_a_cold_shard_takes_three_requests_and_a_warm_one_none(
    server: RangeServer, local: Path, tmp_path: Path, sidecars: bool
) -> None:
    place = serve(server, local)
    if not sidecars:
        forget_indexes(server, "dataset.index")
    dataset = opened(place, tmp_path / "cache")
    asked(server)
    assert dataset.read(0)["__key__"] == "000"
    assert dataset.store.prefetch(dataset.ref(0))
    # its length, its bytes, and its index, which is here from now on; and what was read straight
    # from the source, because a slow download would have taken longer
    assert asked(server) == 3 + dataset.store.metrics.bypasses
    dataset.close()
    assert dataset.read(EACH - 1)["__key__"] == f"{EACH - 1:03d}"
    assert asked(server) == 0


def test_a_hash_is_not_needed_for_that(server: RangeServer, local: Path, tmp_path: Path) -> None:
    serve(server, local)
    place = unhashed(server, tmp_path)
    assert open_manifest(place).hash(0) is None
    dataset = opened(place, tmp_path / "cache")
    asked(server)
    dataset.read(0)
    assert dataset.store.prefetch(dataset.ref(0))
    assert asked(server) == 2 + dataset.store.metrics.bypasses  # indexing has kept the index
    again = opened(place, tmp_path / "cache")
    again.read(0)
    assert asked(server) == 0
    assert (again.store.metrics.hits, again.store.metrics.misses) == (1, 0)


def test_a_download_that_has_just_ended_is_not_asked_for_again(
    server: RangeServer, local: Path, tmp_path: Path
) -> None:
    dataset = opened(serve(server, local), tmp_path / "cache")
    assert dataset.store.prefetch(dataset.ref(0))
    dataset.index(0)
    asked(server)
    with mock.patch.object(CacheDisk, "whole", return_value=None):  # as just before its end
        assert dataset.store.prefetch(dataset.ref(0))
        assert dataset.read(0)["__key__"] == "000"
    assert asked(server) == 0
    assert dataset.store.metrics.hits == 2


def test_an_object_put_there_later_is_not_taken_for_the_indexed_one(
    server: RangeServer, local: Path, tmp_path: Path
) -> None:
    serve(server, local)
    place = unhashed(server, tmp_path)
    path = "/set/s-00.tar"
    server.put(path, server.objects[path].body, etag='"2"')
    dataset = opened(place, tmp_path / "cache")
    for _ in range(2):
        dataset.read(0)
        dataset.store.prefetch(dataset.ref(0))
        dataset.close()
        assert asked(server) > 0


@pytest.mark.parametrize("hashed", [True, False])
def test_a_warmed_epoch_needs_no_source(local: Path, tmp_path: Path, hashed: bool) -> None:
    with range_server() as server:
        url = serve(server, local)
        place: str | Path = url if hashed else unhashed(server, tmp_path)
        told = document("warm", place, "--cache", tmp_path / "cache", "--cache-bytes", "1GB")
        assert told["cached"] == SHARDS
        kept = list((tmp_path / "user/hpckit/index").glob("*.index"))
        assert len(kept) == SHARDS, "packing reads these before any shard is open"
        dataset = opened(place, tmp_path / "cache")
    assert epoch(dataset) == EVERYTHING  # of a server that is gone
    assert dataset.store.metrics.bypasses == 0


def test_a_cache_without_indexes_is_enough(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of another user's home: they are made anew, of what lies in the cache."""
    with range_server() as server:
        dataset = opened(serve(server, local), tmp_path / "cache")
        for shard in range(SHARDS):
            assert dataset.store.prefetch(dataset.ref(shard))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    assert epoch(dataset) == EVERYTHING


def test_an_index_of_a_copy_is_compared_once(
    server: RangeServer, local: Path, tmp_path: Path
) -> None:
    """Without a manifest there is no digest to tell: headers are looked at, and then it is kept."""
    serve(server, local)
    urls = [f"{server.url}/set/s-{number:02d}.tar" for number in range(SHARDS)]
    first = opened_list(urls, tmp_path)
    assert asked(server) > 2 * SHARDS
    assert opened_list(urls, tmp_path).fingerprint == first.fingerprint
    assert asked(server) == SHARDS


def opened_list(urls: list[str], folder: Path) -> Dataset:
    return open_dataset(urls, cache=folder / "c", cache_bytes=10**9, sources=Sources(retry=QUICK))


EXPIRED = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"


def test_an_expired_signature_is_told_with_what_to_do(
    server: RangeServer, local: Path, tmp_path: Path
) -> None:
    serve(server, local)
    paths = sorted(path for path in server.objects if path.endswith(".tar"))

    def signed(signature: str) -> Dataset:
        urls = [f"{server.url}{path}?Expires=1&sig={signature}" for path in paths]
        return open_dataset(urls, sources=Sources(retry=QUICK))

    dataset = signed("one")
    loader = Loader(dataset, global_batch=30)
    next(iter(loader))
    state = loader.state_dict()
    loader.close()
    late = signed("one")
    server.refuses = "sig=one", EXPIRED  # between the index and a read
    asked(server)
    with pytest.raises(FetchError) as raised:
        late.read(0)
    assert asked(server) == 1  # it is not tried again
    said = str(raised.value)
    assert f"shard {server.url}{paths[0]}" in said
    assert "403 AccessDenied; the signature of the URL expired at 1970-01-01 00:00:01 UTC" in said
    assert "sign the URLs again" in said
    assert "sig=" not in said
    again = Loader(signed("two"), global_batch=30)
    again.load_state_dict(state)
    assert next(iter(again)).keys
    again.close()


def test_urls_that_are_signed_when_they_are_read_never_expire(
    server: RangeServer, local: Path
) -> None:
    serve(server, local)
    urls = sorted(server.url + path for path in server.objects if path.endswith(".tar"))
    made = count()
    sources = Sources({"http": {"sign": lambda url: f"{url}?sig=x{next(made)}x"}}, retry=QUICK)
    dataset = open_dataset(urls, sources=sources)
    assert epoch(dataset) == EVERYTHING
    before = next(made)
    for number in range(before):
        server.refuses = f"sig=x{number}x", EXPIRED
        assert epoch(dataset) == EVERYTHING
    assert next(made) > before + 1


@pytest.mark.parametrize("etag", [None, '"1"'])
def test_a_source_that_tells_no_versions_apart_is_told_of_once(
    server: RangeServer,
    local: Path,
    tmp_path: Path,
    etag: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    serve(server, local)
    for served in server.objects.values():
        served.etag = etag
    dataset = opened(unhashed(server, tmp_path), tmp_path / "cache")
    epoch(dataset)
    assert sum("tells no versions apart" in text for text in caplog.messages) == (etag is None)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_shard_of_another_version_than_was_indexed_is_told_of(
    server: RangeServer,
    local: Path,
    tmp_path: Path,
    replaced: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    serve(server, local)
    place = unhashed(server, tmp_path)
    for served in server.objects.values():
        served.etag = '"another"' if replaced else served.etag
    dataset = opened(place, tmp_path / "cache")
    assert epoch(dataset) == EVERYTHING
    assert sum("than when it was indexed" in text for text in caplog.messages) == replaced
    assert dataset.store.metrics.replaced == replaced * SHARDS
