"""The shards of a batch that are far away are opened at the same time, not one after another."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from data.errors import DataError
from data.reader.stream import Stream

_AT_A_TIME = 32  # threads, which wait for answers


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


def settle(stream: Stream) -> None:
    """Nothing more is read: wait until all that was is known to be right. Raises as above."""
    for dataset in stream.datasets:
        dataset.store.settle()
