"""The shards of a batch that are far away are opened at the same time, not one after another; and
so are the samples read that lie in them."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from data.errors import DataError
from data.read.sample_stream import SampleStream
from data.read.shards.piece_reads import Make, SampleReader

_AT_A_TIME = 32  # threads, which wait for answers


def open_in_parallel(stream: SampleStream, wanted: Iterable[tuple[int, int]]) -> None:
    """Have all downloads begun before the first of them is waited for.

    What fails is left to who reads the samples.

    Args:
        wanted: dataset and shard, each once.

    Raises DamagedShardError if what was read before has proved wrong: see `NodeStore.check`.
    """
    for dataset in stream.datasets:
        dataset.store.check()
    closed = [(which, shard) for which, shard in wanted if stream.datasets[which].is_afar(shard)]
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
    """What makes each sample; those that wait for a source are being made, many at a time.

    Args:
        readers, samples: whom to ask for each, and its number in the shard.
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
    """Nothing more is read: wait until all that was is known to be right. Raises as above."""
    for dataset in stream.datasets:
        dataset.store.settle()
