"""The node store on a real S3 server, found by the environment alone."""

import subprocess
import sys
from pathlib import Path

import obstore
import pytest

from data import Loader, open_dataset
from data.cache import cache_maintenance
from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import NodeStore
from data.errors import FetchError
from data.source.retry import SourceRetryPolicy
from data.source.sources import Sources
from tests.integration.cli.data_commands import EACH, SHARDS, write_shards
from tests.integration.data.shard_reader import body_of
from tests.services.faults import EXPIRED_TOKEN, SLOW_DOWN, ResetDownload
from tests.services.fixtures import FaultyS3
from tests.services.processes import bound
from tests.services.s3 import S3Place

SIZE = 1_500_000
NAMES = [f"{i}.tar" for i in range(3)]


def put_all(place: S3Place) -> None:
    for name in NAMES:
        obstore.put(place.store(), name, body_of(name, SIZE))


def test_processes_share_one_download(
    s3_url: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_all(s3_url)
    for name, value in s3_url.env.items():
        monkeypatch.setenv(name, value)
    arguments = [str(tmp_path / "c"), str(10**9), s3_url.url, ",".join(NAMES), str(SIZE)]
    command = [sys.executable, "-m", "tests.integration.data.shard_reader", *arguments]
    readers = [
        subprocess.Popen(bound([*command, str(seed)]), stdout=subprocess.PIPE, text=True)
        for seed in range(3)
    ]
    outs = [reader.communicate(timeout=300)[0] for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0, 0], outs
    assert [right for _, right in cache_maintenance.verified(tmp_path / "c")] == [True] * 3


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_of_a_loader(
    s3_url: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    for name, value in {**s3_url.env, "XDG_CACHE_HOME": str(tmp_path / "user")}.items():
        monkeypatch.setenv(name, value)
    for path in write_shards(tmp_path / "shards").iterdir():
        obstore.put(s3_url.store(), path.name, path.read_bytes())
    dataset = open_dataset(f"{s3_url.url}/", cache=tmp_path / "c", cache_bytes=10**9)
    loader = Loader(dataset, global_batch=30, epochs=1, workers=workers)
    keys = sorted(key for batch in loader for key in batch.keys)
    loader.close()
    assert keys == [f"{number:03d}" for number in range(SHARDS * EACH)]


def test_faults_of_the_store(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    put_all(faulty_s3.direct)
    sources = Sources(
        {"s3": faulty_s3.place.options},
        retry=SourceRetryPolicy(budget_s=2.0, first_s=0.01),
    )
    faulty_s3.proxy.inject(ResetDownload(SIZE // 2), method="GET", key=r"0\.tar", times=1)
    faulty_s3.proxy.inject(SLOW_DOWN, key=r"1\.tar", times=2)
    faulty_s3.proxy.inject(EXPIRED_TOKEN, key=r"2\.tar")
    refs = [ShardRef(f"{faulty_s3.place.url}/{name}") for name in NAMES]
    with NodeStore(tmp_path / "c", 10**9, sources=sources, free_reserve=0) as store:
        for ref, name in zip(refs[:2], NAMES[:2], strict=True):
            with store.open(ref) as shard:
                assert shard.pread(0, SIZE) == body_of(name, SIZE)
        with store.open(refs[2]) as shard, pytest.raises(FetchError, match="403") as caught:
            shard.pread(0, 1)
        assert "2.tar" in str(caught.value)
        assert store.metrics.bytes_fetched == 2 * SIZE
        obstore.put(faulty_s3.direct.store(), NAMES[0], body_of("new", SIZE))
        with store.open(refs[0]) as shard:
            assert shard.pread(0, SIZE) == body_of("new", SIZE)
