"""Ways to read a data set, all with one face: batches of the contents of samples, without end.

None of them decodes. Where a reader has workers, `workers` 0 is none: it reads in the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.data.data_sets import EXTENSION, Samples
from data.read.shards.shard_samples import Check

Batches = Iterator[list[bytes]]


@dataclass(frozen=True)
class Reading:
    """What is read, and how."""

    tars: Path
    converted: Path
    """Folder for what peers make of it."""
    samples: Samples
    batch: int = 64
    workers: int = 0
    prefetch: int = 2
    threads: int = 2

    @property
    def urls(self) -> list[str]:
        return [str(path) for path in sorted(self.tars.glob("*.tar"))]


@dataclass(frozen=True)
class ReadArm:
    """One way."""

    name: str
    read: Callable[[Reading], Batches]
    prepare: Callable[[Reading], None] = lambda reading: None
    """Converts the data set, if it is not yet."""
    module: str | None = None
    """What has to be installed."""


def hpckit(reading: Reading) -> Batches:
    """Shuffled, as it comes."""
    return _hpckit(reading, reading.threads)


def hpckit_no_threads(reading: Reading) -> Batches:
    """The same, read by who asks for it."""
    return _hpckit(reading, 0)


def hpckit_headers(reading: Reading) -> Batches:
    """The same, but headers are compared in place of contents, as without their checksums."""
    return _hpckit(reading, reading.threads, "headers")


def hpckit_zst(reading: Reading) -> Batches:
    """The same, of tars that are compressed by zstd: they are unpacked into a cache before the
    first batch, and have no checksums of contents."""
    cache: dict[str, Any] = {"cache": reading.converted / "cache", "cache_bytes": 1 << 40}
    return _hpckit(reading, reading.threads, shards=_compressed(reading), **cache)


def _compressed(reading: Reading) -> list[Path]:
    return [reading.converted / f"{Path(url).name}.zst" for url in reading.urls]


def _prepare_zst(reading: Reading) -> None:
    import zstandard

    reading.converted.mkdir(parents=True, exist_ok=True)
    for url, path in zip(reading.urls, _compressed(reading), strict=True):
        if not path.exists():
            path.write_bytes(zstandard.compress(Path(url).read_bytes()))


def _hpckit(
    reading: Reading,
    threads: int,
    check: Check = "auto",
    shards: Path | list[Path] | None = None,
    **cache: Any,
) -> Batches:
    from data import Loader, open_dataset

    def batches() -> Batches:  # so that what was imported above counts for no arm
        loader = Loader(
            open_dataset(shards or reading.tars, check=check, **cache),
            global_batch=reading.batch,
            threads=threads,
            prefetch=reading.prefetch,
        )
        for batch in loader:
            yield [sample[EXTENSION] for sample in batch.data]

    return batches()


def webdataset(reading: Reading) -> Batches:
    """In the order of the shards: as fast as it can."""
    return _webdataset(reading, 0)


def webdataset_shuffled(reading: Reading) -> Batches:
    """Shards shuffled, and samples in its usual buffer."""
    return _webdataset(reading, 1000)


def _webdataset(reading: Reading, buffer: int) -> Batches:
    import webdataset as wds

    source = wds.WebDataset(reading.urls, shardshuffle=100 if buffer else False, empty_check=False)
    source = source.shuffle(buffer) if buffer else source
    batched = source.batched(reading.batch, collation_fn=None)
    if reading.workers:
        loader = wds.WebLoader(batched, batch_size=None, num_workers=reading.workers)
        return _listed(loader.repeat())
    return _listed(batched.repeat())


def _listed(batches: Any) -> Batches:
    for batch in batches:
        yield [sample[EXTENSION] for sample in batch]


def grouped(samples: Iterator[bytes], size: int) -> Batches:
    """Batches of what gives single samples."""
    while batch := list(islice(samples, size)):
        yield batch


def forever(make: Callable[[], Any]) -> Iterator[Any]:
    """What an iterable gives, again and again."""
    while True:
        yield from make()


ARMS = (
    ReadArm("hpckit", hpckit),
    ReadArm("hpckit, no threads", hpckit_no_threads),
    ReadArm("hpckit, headers compared", hpckit_headers),
    ReadArm("hpckit, tar.zst", hpckit_zst, _prepare_zst, "zstandard"),
    ReadArm("webdataset", webdataset, module="webdataset"),
    ReadArm("webdataset, shuffled", webdataset_shuffled, module="webdataset"),
)
