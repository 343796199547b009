"""The measurements of `bench`: each reader reads shards for some seconds, in its own process."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RAW, OURS = "raw read", "hpckit"
_PIECE = 1 << 20


@dataclass(frozen=True)
class ReaderBenchmark:
    """The settings of a benchmark."""

    shards: tuple[str, ...]
    """Names as on the command line."""
    urls: tuple[str, ...]
    """URL of each shard."""
    seconds: float
    """Duration of each measurement."""
    batch: int = 64
    threads: int = 2
    prefetch: int = 2
    step_s: float = 0.0
    """Seconds that the consumer sleeps for each batch."""
    cache: Path | None = None
    cache_bytes: int = 0


@dataclass(frozen=True)
class ReaderMeasurement:
    """One measurement, from the first batch on."""

    bytes: int
    seconds: float
    samples: int | None = None
    """Number of samples; None if only bytes are read."""
    waited_s: float = 0.0
    first_s: float = 0.0
    """Seconds to open the dataset and to read the first batch."""
    diagnosis: str = ""

    @property
    def mb_per_s(self) -> float:
        return self.bytes / self.seconds / 1e6 if self.seconds else 0.0

    @property
    def samples_per_s(self) -> float | None:
        if self.samples is None or not self.seconds:
            return None
        return self.samples / self.seconds

    @property
    def wait_share(self) -> float | None:
        return None if self.samples is None else self.waited_s / max(self.seconds, 1e-9)


Arm = Callable[[ReaderBenchmark], ReaderMeasurement]


def arms(against: Sequence[str]) -> dict[str, Arm]:
    """Return the readers by name."""
    known: dict[str, Arm] = {"webdataset": read_webdataset}
    return {RAW: read_raw, OURS: read_ours, **{name: known[name] for name in against}}


def measure(name: str, bench: ReaderBenchmark, against: Sequence[str]) -> ReaderMeasurement:
    """Measure one reader in a process that does nothing else."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as fresh:
        return fresh.submit(_run, name, bench, tuple(against)).result()


def read_raw(bench: ReaderBenchmark) -> ReaderMeasurement:
    """Read the bytes of all shards, one after the other, repeatedly until the time is up."""
    from data.source.address import Address
    from data.source.sources import Sources

    sources, buffer = Sources(), bytearray(_PIECE)
    total, began_s = 0, time.perf_counter()
    while True:
        for url in bench.urls:
            path = Address.parse(url).local
            pieces = sources.stream(url, 0) if path is None else _pieces(path, buffer)
            for piece in pieces:
                total += len(piece)
                if (passed_s := time.perf_counter() - began_s) >= bench.seconds:
                    return ReaderMeasurement(total, passed_s)


def read_ours(bench: ReaderBenchmark) -> ReaderMeasurement:
    """Read with a loader of one rank, without a transform."""
    from data.read.loader import Loader
    from hpckit.cli.data.dataset_opening import open_shards

    began_s = time.perf_counter()
    dataset = open_shards(bench.shards, bench.cache, bench.cache_bytes)
    loader = Loader(
        dataset, global_batch=bench.batch, threads=bench.threads, prefetch=bench.prefetch
    )
    batches = iter(loader)
    next(batches)
    first, first_s = loader.usage, time.perf_counter() - began_s
    begun_s = time.perf_counter()
    while time.perf_counter() - begun_s < bench.seconds:
        next(batches)
        time.sleep(bench.step_s)
    passed_s, spent = time.perf_counter() - begun_s, loader.usage - first
    diagnosis = spent.diagnosis()
    loader.close()
    dataset.store.close()
    return ReaderMeasurement(spent.bytes, passed_s, spent.samples, spent.wait_s, first_s, diagnosis)


def read_webdataset(bench: ReaderBenchmark) -> ReaderMeasurement:
    """Read with `WebDataset` in the order of the shards, without shuffling."""
    import webdataset  # type: ignore[import-untyped, unused-ignore]

    began_s = time.perf_counter()
    source = webdataset.WebDataset(list(bench.urls), shardshuffle=False, empty_check=False)
    batches = iter(source.batched(bench.batch, collation_fn=None).repeat())
    _count(next(batches))
    first_s = time.perf_counter() - began_s
    samples = total = 0
    waited_s = 0.0
    begun_s = time.perf_counter()
    while time.perf_counter() - begun_s < bench.seconds:
        asked_s = time.perf_counter()
        found = next(batches)
        waited_s += time.perf_counter() - asked_s
        samples, total = samples + len(found), total + _count(found)
        time.sleep(bench.step_s)
    return ReaderMeasurement(total, time.perf_counter() - begun_s, samples, waited_s, first_s)


def _run(name: str, bench: ReaderBenchmark, against: Sequence[str]) -> ReaderMeasurement:
    return arms(against)[name](bench)


def _pieces(path: Path, buffer: bytearray) -> Iterable[memoryview]:
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while got := file.readinto(buffer):
            yield view[:got]


def _count(batch: Sequence[dict[str, Any]]) -> int:
    return sum(len(v) for sample in batch for v in sample.values() if isinstance(v, bytes))
