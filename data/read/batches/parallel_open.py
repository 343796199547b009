"""Parallel opening of the shards of a batch that need requests, and parallel reads of their
samples."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeAlias

from data.cache.downloads.download_job import copy_of_error
from data.errors import DataError, FetchError
from data.read.sample_stream import SampleStream
from data.read.shards.local_file_samples import Sample
from data.read.shards.piece_reads import Make, SampleReader

_Found: TypeAlias = dict[int, tuple[Sample, int]]

_AT_A_TIME = 32  # threads, which wait for answers


def open_in_parallel(stream: SampleStream, wanted: Iterable[tuple[int, int]]) -> None:
    """Start all downloads before the first of them is waited for.

    Errors are left to the reads of the samples.

    Args:
        wanted: (dataset, shard) pairs, each once.
    """
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
def parallel_reads(
    readers: Sequence[SampleReader], samples: Sequence[int], distinct: Iterable[SampleReader]
) -> Iterator[list[Make]]:
    """Yield the function that makes each sample. Those that wait for a source are begun in
    parallel; those that would, and whose bytes have arrived, are made here.

    Args:
        readers, samples: the reader of each sample, and its number in the shard.
        distinct: these readers, each once.
    """
    if all(reader.read_arrived is None and reader.groups is None for reader in distinct):
        yield [reader.make for reader in readers]
        return
    # the pool starts a thread for each sample that waits, and none if none does
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="hpckit-data-read") as pool:
        together = _Groups(pool, readers, samples)
        each = zip(readers, samples, strict=True)
        yield [_arrived(reader, sample) or together.make(reader, sample) for reader, sample in each]


def _arrived(reader: SampleReader, sample: int) -> Make | None:
    """Return the function that makes a sample; None if that waits for a source."""
    if reader.groups is not None:
        return None
    if reader.read_arrived is None:
        return reader.make
    found = reader.read_arrived(sample)
    return None if found is None else lambda _, __: found


class _Groups:
    """The samples of a batch that wait for a source, those of a group by one request."""

    def __init__(
        self, pool: ThreadPoolExecutor, readers: Sequence[SampleReader], samples: Sequence[int]
    ) -> None:
        self._pool = pool
        self._coming: dict[tuple[int, int], Future[_Found]] = {}
        by_reader: dict[int, tuple[SampleReader, list[int]]] = {}
        for reader, sample in zip(readers, samples, strict=True):
            if reader.groups is not None:
                by_reader.setdefault(id(reader), (reader, []))[1].append(sample)
        for reader, numbers in by_reader.values():
            assert reader.groups is not None
            assert reader.read_group is not None
            for group in reader.groups(numbers):
                if len(group) > 1:
                    coming = pool.submit(reader.read_group, group)
                    self._coming.update({(id(reader), sample): coming for sample in group})

    def make(self, reader: SampleReader, sample: int) -> Make:
        """Begin to make a sample, and return the function that waits for it."""
        group = self._coming.get((id(reader), sample))
        if group is not None:
            return lambda _, __: _of_group(group, sample) or reader.make(sample, iter(()))
        coming = self._pool.submit(reader.make, sample, iter(()))
        return lambda _, __: coming.result()


def _of_group(group: "Future[_Found]", sample: int) -> tuple[Sample, int] | None:
    """Return a sample of a group, which the caller may change though a batch has it twice; None if
    it has to be read alone, as it is not right, or the shard does not have all of the group. Raises
    FetchError: a source that was tried again and again is not tried for each sample."""
    try:
        found = group.result().get(sample)
    except FetchError as error:
        if len(error.attempts) > 1:
            raise copy_of_error(error) from None
        return None
    except (DataError, OSError):
        return None
    return None if found is None else (dict(found[0]), found[1])


def await_verification(stream: SampleStream) -> None:
    """Wait, after the last read, until all bytes read are verified. Raises as `NodeStore.check`
    does."""
    for dataset in stream.datasets:
        dataset.store.settle()
