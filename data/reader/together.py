"""The shards of a batch that are far away are opened at the same time, not one after another; and
so are the samples read that lie in them."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeAlias

from data.errors import DataError
from data.reader.pieces import Reader, at_once
from data.reader.stream import Stream

_AT_A_TIME = 32  # threads, which wait for answers

Asked: TypeAlias = tuple[Reader, int]
"""Whom to ask for a sample, and its number in the shard."""


def open_together(stream: Stream, datasets: Sequence[int], shards: Sequence[int]) -> None:
    """Have all downloads begun before the first of them is waited for.

    What fails is left to who reads the samples.

    Args:
        datasets, shards: of each sample.

    Raises DamagedShardError if what was read before has proved wrong: see `NodeStore.check`.
    """
    for dataset in stream.datasets:
        dataset.store.check()
    wanted = dict.fromkeys(zip(datasets, shards, strict=True))
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
def begun(asked: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
    """The same, of which those that wait for a source are being made, many at a time."""
    waiting = sum(reader.waits for reader, _ in asked)
    with ThreadPoolExecutor(
        min(_AT_A_TIME, max(1, waiting)), thread_name_prefix="hpckit-data-read"
    ) as pool:

        def begin(reader: Reader, sample: int) -> Reader:
            coming = pool.submit(reader.make, sample, iter(()))
            return at_once(lambda _: coming.result())

        yield [
            (begin(reader, sample) if reader.waits else reader, sample) for reader, sample in asked
        ]


def settle(stream: Stream) -> None:
    """Nothing more is read: wait until all that was is known to be right. Raises as above."""
    for dataset in stream.datasets:
        dataset.store.settle()
