"""Ways to read an epoch of shards in a bucket, all with one face: batches of samples' contents.

hpckit verifies each sample and shuffles; its peers read the shards in their order, by webdataset's
own reader of tars, and verify nothing. Peers that are not installed are in a folder that `--peers`
names:

    .venv/bin/pip install --target FOLDER --no-deps s3torchconnector s3torchconnectorclient \\
        multi-storage-client boto3 botocore ... (what these ask for, but torch)
"""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import obstore

from benchmarks.data.data_sets import EXTENSION, Samples
from tests.services.s3 import REGION, S3Place

_PIECE = 1 << 20
_SIGNED_FOR = timedelta(hours=12)
_PROFILE = "bench"

Batches = Iterator[list[bytes]]


@dataclass(frozen=True)
class BucketReading:
    """What is read, and how."""

    place: S3Place
    samples: Samples
    cache: Path
    """An empty folder."""
    batch: int = 64
    workers: int = 0
    downloads: int = 8
    """Objects that a plain download fetches at a time."""

    @property
    def keys(self) -> list[str]:
        """The keys of the shards, without the prefix of the place."""
        return [f"shard-{number:06d}.tar" for number in range(self.samples.shards)]


@dataclass(frozen=True)
class EpochRead:
    """An epoch that was begun."""

    batches: Batches
    requests: Callable[[], int | None] = lambda: None
    """How many requests it took, if that is known."""
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class BucketArm:
    """One way."""

    name: str
    begin: Callable[[BucketReading], EpochRead]
    modules: tuple[str, ...] = ()
    """What has to be installed, and is imported before anything is measured."""
    epochs_before: int = 0
    """Epochs that are read and not measured."""
    is_slow: bool = False
    """Whether it is measured only if it is asked for."""


def plain_download(reading: BucketReading) -> EpochRead:
    """All objects, some at a time, in pieces that are thrown away: no sample is looked at."""
    store = reading.place.store(timeout_s=600)

    def download(key: str) -> int:
        return sum(map(len, obstore.get(store, key).stream(min_chunk_size=_PIECE)))

    def batches() -> Batches:
        with ThreadPoolExecutor(reading.downloads) as pool:
            for _ in pool.map(download, reading.keys):
                yield []

    return EpochRead(batches(), lambda: len(reading.keys))


def hpckit(reading: BucketReading, **options: Any) -> EpochRead:
    """Through a cache: shuffled, each sample compared with its checksum, each shard with its
    hash."""
    return _hpckit(reading, {"cache": reading.cache, "cache_bytes": 1 << 40}, options)


def hpckit_stored_order(reading: BucketReading) -> EpochRead:
    """The same, in the order of the shards."""
    return hpckit(reading, shuffle=False)


def hpckit_no_cache(reading: BucketReading, **options: Any) -> EpochRead:
    """Without a cache, shuffled."""
    return _hpckit(reading, {}, options)


def hpckit_no_cache_stored_order(reading: BucketReading) -> EpochRead:
    """Without a cache, in the order of the shards."""
    return hpckit_no_cache(reading, shuffle=False)


def _hpckit(reading: BucketReading, cache: dict[str, Any], options: dict[str, Any]) -> EpochRead:
    from data import Loader, open_dataset
    from data.source.sources import Sources

    os.environ["XDG_CACHE_HOME"] = str(reading.cache)  # where indexes of shards are kept
    sources = Sources({"s3": reading.place.options})
    dataset = open_dataset(f"{reading.place.url}/", sources=sources, **cache)
    loader = Loader(dataset, global_batch=reading.batch, epochs=1, tail="pad", **options)

    def batches() -> Batches:
        for batch in loader:
            each = zip(batch.data, batch.mask, strict=True)
            yield [sample[EXTENSION] for sample, counts in each if counts]

    def close() -> None:
        loader.close()
        dataset.store.close()

    return EpochRead(batches(), lambda: sources.traffic.requests, close)


def webdataset_pipe(reading: BucketReading) -> EpochRead:
    """webdataset's `pipe:` of curl, with signed URLs."""
    store = reading.place.store()
    urls = [obstore.sign(store, "GET", key, _SIGNED_FOR) for key in reading.keys]
    return _tars([f"pipe:curl -s --fail {shlex.quote(url)}" for url in urls], None, reading)


def s3torchconnector(reading: BucketReading) -> EpochRead:
    """Readers of `S3IterableDataset`, of whole objects, by the C runtime of AWS."""
    module = importlib.import_module("s3torchconnector")
    os.environ.update(reading.place.env)

    def opened(urls: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        found = module.S3IterableDataset.from_objects(
            [one["url"] for one in urls],
            region=REGION,
            endpoint=reading.place.endpoint,
            s3client_config=module.S3ClientConfig(force_path_style=True),
        )
        for reader in found:
            yield {"url": reader.key, "stream": reader}

    return _tars([f"{reading.place.url}/{key}" for key in reading.keys], opened, reading)


def multi_storage_client(reading: BucketReading, rust: bool = True) -> EpochRead:
    """`StorageClient.open`, which fetches a shard into memory in a thread."""
    module = importlib.import_module("multistorageclient")
    place = reading.place
    options = {
        "base_path": place.bucket,
        "region_name": REGION,
        "endpoint_url": place.endpoint,
        **({"rust_client": {"allow_http": True}} if rust else {}),
    }
    secrets = {"access_key": place.access_key, "secret_key": place.secret_key}
    profile = {
        "storage_provider": {"type": "s3", "options": options},
        "credentials_provider": {"type": "S3Credentials", "options": secrets},
    }

    def opened(urls: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        config = module.StorageClientConfig.from_dict({"profiles": {_PROFILE: profile}}, _PROFILE)
        client = module.StorageClient(config)
        for one in urls:
            with client.open(one["url"], "rb") as stream:
                yield {"url": one["url"], "stream": stream}

    return _tars([f"{place.prefix}/{key}" for key in reading.keys], opened, reading)


def _tars(
    urls: list[str],
    opened: Callable[[Iterable[dict[str, Any]]], Iterator[dict[str, Any]]] | None,
    reading: BucketReading,
) -> EpochRead:
    """Read the samples of tars by webdataset.

    Args:
        opened: opens each URL; None: webdataset does.
    """
    import webdataset as wds

    if opened is None:
        source = wds.WebDataset(urls, shardshuffle=False, empty_check=False)
        pipeline = source.batched(reading.batch, collation_fn=None)
    else:
        pipeline = wds.DataPipeline(
            wds.SimpleShardList(urls),
            wds.split_by_worker,
            opened,
            wds.tariterators.tar_file_expander,
            wds.tariterators.group_by_keys,
            wds.batched(reading.batch, collation_fn=None),
        )
    if reading.workers:
        pipeline = wds.WebLoader(pipeline, batch_size=None, num_workers=reading.workers)

    def batches() -> Batches:
        for batch in pipeline:
            yield [sample[EXTENSION] for sample in batch]

    return EpochRead(batches())


PLAIN = "plain download"
_HPCKIT = ("data", "data.source.s3", "data.read.loader")

ARMS = (
    BucketArm(PLAIN, plain_download),
    BucketArm("hpckit", hpckit, _HPCKIT),
    BucketArm("hpckit, stored order", hpckit_stored_order, _HPCKIT),
    BucketArm("hpckit, cached before", hpckit, _HPCKIT, epochs_before=1),
    BucketArm("hpckit, no cache", hpckit_no_cache, _HPCKIT, is_slow=True),
    BucketArm("hpckit, no cache, stored order", hpckit_no_cache_stored_order, _HPCKIT),
    BucketArm("webdataset, pipe: of curl", webdataset_pipe, ("webdataset",)),
    BucketArm("s3torchconnector", s3torchconnector, ("s3torchconnector", "webdataset")),
    BucketArm(
        "multi-storage-client", multi_storage_client, ("multistorageclient", "boto3", "webdataset")
    ),
    BucketArm(
        "multi-storage-client, boto3",
        partial(multi_storage_client, rust=False),
        ("multistorageclient", "boto3", "webdataset"),
        is_slow=True,
    ),
)


def arm(name: str) -> BucketArm:
    """By its name."""
    return next(one for one in ARMS if one.name == name)
