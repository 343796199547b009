"""Parallel opening of the shards of a batch that need requests, and parallel reads of their
samples."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from data.errors import DataError
from data.read.sample_stream import SampleStream
from data.read.shards.piece_reads import Make, SampleReader

_AT_A_TIME = 32  # threads, which wait for answers


def open_in_parallel(stream: SampleStream, wanted: Iterable[tuple[int, int]]) -> None:
    """Start all downloads before the first of them is waited for.

    Errors are left to the reads of the samples.

    Args:
        wanted: (dataset, shard) pairs, each once.

    Raises DamagedShardError if bytes read before have proved wrong: see `NodeStore.check`.
    """
    for dataset in stream.datasets:
        dataset.store.check()
    closed = [(which, shard) for which, shard in wanted if stream.datasets[which].is_remote(shard)]
    if len(closed) < 2:
        return

    def open_one(pair: tuple[int, int]) -> None:
        with suppress(DataError, OSError):
            stream.datasets[pair[0]].opened(pair[1])

    count = min(_AT_A_TIME, len(closed))
    with ThreadPoolExecutor(count, thread_name_prefix="hpckit-data-open") as pool:
        list(pool.map(open_one, closed))


@contextmanager
def parallel_reads(readers: Sequence[SampleReader], samples: Sequence[int]) -> Iterator[list[Make]]:
    """Yield the function that makes each sample; those that wait for a source run in parallel.

    Args:
        readers, samples: the reader of each sample, and its number in the shard.
    """
    waiting = sum(reader.waits for reader in readers)
    if waiting == 0:
        yield [reader.make for reader in readers]
        return
    count = min(_AT_A_TIME, waiting)
    with ThreadPoolExecutor(count, thread_name_prefix="hpckit-data-read") as pool:

        def begin(reader: SampleReader, sample: int) -> Make:
            coming = pool.submit(reader.make, sample, iter(()))
            return lambda _, __: coming.result()

        yield [
            begin(reader, sample) if reader.waits else reader.make
            for reader, sample in zip(readers, samples, strict=True)
        ]


def await_verification(stream: SampleStream) -> None:
    """Wait, after the last read, until all bytes read are verified. Raises as `open_in_parallel`
    does."""
    for dataset in stream.datasets:
        dataset.store.settle()
