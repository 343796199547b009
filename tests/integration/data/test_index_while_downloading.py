"""A shard without an index is indexed as it is downloaded, not read twice."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from data import Loader, Sources, build_index, open_dataset, open_manifest, pack_folder
from data.cache.cache_metrics import CacheMetrics
from data.index.manifest import NAME
from tests.services.range_server import RangeServer, range_server


@pytest.fixture
def indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's own indexes are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    return tmp_path / "user/hpckit/index"


@pytest.fixture
def manifest(tmp_path: Path, indexes: Path) -> Iterator[tuple[Path, RangeServer]]:
    """Of shards at a server that has no indexes, nor has anybody else."""
    source = tmp_path / "src"
    source.mkdir()
    for i in range(120):
        (source / f"{i:03d}.bin").write_bytes(i.to_bytes(2) * 5000)
    pack_folder(source, tmp_path / "shards", samples_per_shard=40)
    with range_server() as server:
        urls = [
            server.put(f"/{shard.name}", shard.read_bytes())
            for shard in sorted((tmp_path / "shards").glob("*.tar"))
        ]
        out = tmp_path / NAME
        build_index(urls, out, source=Sources())
        shutil.rmtree(indexes)
        server.sent = 0
        server.streams.clear()
        yield out, server


def read(place: Path, cache: Path) -> tuple[list[str], CacheMetrics]:
    """The keys of an epoch, and what was fetched for it."""
    dataset = open_dataset(place, cache=cache, cache_bytes=10**9)
    loader = Loader(dataset, global_batch=8, epochs=1, shuffle=False)
    found = [key for batch in loader for key in batch.keys]
    loader.close()
    return found, dataset.store.metrics


def test_no_byte_comes_twice(
    manifest: tuple[Path, RangeServer], tmp_path: Path, indexes: Path
) -> None:
    place, server = manifest
    size = sum(len(served.body) for served in server.objects.values())
    keys, fetched = read(place, tmp_path / "cache")
    assert keys == [f"{i:03d}" for i in range(120)]
    assert Counter(server.streams) == {(path, 0): 1 for path in server.objects}
    assert fetched.bytes_fetched == size or fetched.bypasses, "a slow download is read past"
    assert size <= server.sent < fetched.bytes_fetched + 1000, "and nothing for an index"
    assert len(list(indexes.glob("*.index"))) == 3
    before = server.sent
    keys, _ = read(place, tmp_path / "cache")
    assert len(keys) == 120
    assert server.sent - before < 1000


def test_what_passes_damaged_makes_no_index(
    manifest: tuple[Path, RangeServer], indexes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = open_manifest(manifest[0])
    with caplog.at_level(logging.WARNING):
        index = found.open_shard(0, source=Sources(), passing=lambda at, size: b"\1" * size)
    assert len(index) == 40
    assert "indexed at its source and not during its download" in caplog.text
    body = manifest[1].objects["/shard-000001.tar"].body
    index = found.open_shard(0, source=Sources(), passing=lambda at, size: body[at : at + size])
    assert index.key(0) == "000", "of another shard's samples"
