"""Shards that are files, as on NFS: read where they lie, or by way of the cache if that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from data import Dataset, Loader, build_index, open_dataset
from data.cache.cache_warming import warm
from data.cache.files import filesystem_type
from data.cache.node_store import CacheLocal
from data.errors import DataError
from data.read.batches.shard_prefetch import has_remote_shards
from data.read.sample_stream import in_order
from tests.integration.cli.data_commands import EACH, SHARDS, document, write_shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_shards(tmp_path_factory.mktemp("shards"))
    build_index(folder)
    return folder


@pytest.fixture
def mounted(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the shards were on NFS, as the kernel would say."""
    table = Path("/proc/self/mountinfo").read_text()
    line = f"999 1 0:99 / {shards} rw - nfs4 server:/export rw\n"
    (tmp_path / "mountinfo").write_text(table + line)
    monkeypatch.setattr(filesystem_type, "_MOUNTINFO", tmp_path / "mountinfo")


def opened(shards: Path, cache: Path, how: CacheLocal) -> Dataset:
    return open_dataset(shards, cache=cache, cache_bytes=10**9, cache_local=how)


def epoch(dataset: Dataset) -> int:
    loader = Loader(dataset, global_batch=30, epochs=1)
    found = {key for batch in loader for key in batch.keys}
    loader.close()
    return len(found)


def cached(cache: Path) -> int:
    return len(list(cache.glob("*.shard")))


@pytest.mark.parametrize("how", [True, "auto"])
@pytest.mark.usefixtures("mounted")
def test_they_are_copied_once_and_read_from_there(
    shards: Path, tmp_path: Path, how: CacheLocal
) -> None:
    dataset = opened(shards, tmp_path / "c", how)
    assert has_remote_shards(in_order(dataset, samples=SHARDS * EACH))
    assert epoch(dataset) == SHARDS * EACH
    for shard in range(SHARDS):
        assert dataset.store.prefetch(dataset.ref(shard))
    assert cached(tmp_path / "c") == SHARDS
    again = opened(shards, tmp_path / "c", how)
    assert epoch(again) == SHARDS * EACH
    counts = again.store.metrics
    assert (counts.hits, counts.misses, counts.bytes_fetched) == (SHARDS, 0, 0)


@pytest.mark.parametrize("how", [False, "auto"])
def test_they_are_read_where_they_lie(shards: Path, tmp_path: Path, how: CacheLocal) -> None:
    """Those of this machine's own disk; no cache is needed for them."""
    dataset = opened(shards, tmp_path / "c", how)
    assert not has_remote_shards(in_order(dataset, samples=SHARDS * EACH))
    assert epoch(dataset) == SHARDS * EACH
    assert cached(tmp_path / "c") == 0
    refs = [dataset.ref(shard) for shard in range(SHARDS)]
    assert warm(dataset.store, refs, 10**9).in_place == SHARDS


@pytest.mark.usefixtures("mounted")
def test_they_are_warmed(shards: Path, tmp_path: Path) -> None:
    words = (shards, "--cache", tmp_path / "c", "--cache-bytes", "1GB")
    assert document("warm", *words)["in_place"] == SHARDS
    told = document("warm", *words, "--mounted")
    assert (told["in_place"], told["cached"], cached(tmp_path / "c")) == (0, SHARDS, SHARDS)


def test_no_other_word_for_it(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'cache_local must be True, False or "auto", got \'nfs\''):
        opened(shards, tmp_path / "c", "nfs")  # type: ignore[arg-type]
