"""Processor time of ways to get samples of 10 KB out of a shard in the page cache, and how many
requests a shuffled epoch without a cache would take if samples were read ahead.

    python -m benchmarks.data.readers.small_reads [--rounds 15] [--samples 12000]

Each arm makes `bytes` of all samples, 64 at a time: by a `pread` of each in random order, as
readers do; by copies from a mapping; by reading 1,000 neighbours together and dividing that, as if
a small shard was read whole; and by reading 2 or 4 neighbours together. Then, of the default order
and of smaller windows over shards of 10,000 samples: requests for each sample, if those of a shard
that are within 32 KB of each other among so many samples were one request.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from data.order.sample_order import Order
from data.read.batches.batch_fetcher import keep_freed_memory

_BYTES, _EACH = 10_240, 10_752  # of a sample, and with its header
_BATCH = 64
_NEAR = 3  # samples, of 32 KB
_ORDERS = ((1000, 48, 8), (64, 48, 8), (64, 4, 1), (64, 1, 1))  # shards, streams, window
_AHEAD = (64, 3_200, 25_600)


def batches(numbers: list[int], size: int = _BATCH) -> Iterator[list[int]]:
    """The numbers, so many at a time."""
    return (numbers[at : at + size] for at in range(0, len(numbers), size))


def read_each(fd: int, numbers: list[int]) -> None:
    """By a call for each sample."""
    for batch in batches(numbers):
        _ = [os.pread(fd, _BYTES, i * _EACH) for i in batch]


def copy_each(mapped: mmap.mmap, numbers: list[int]) -> None:
    """By copies from a mapping."""
    for batch in batches(numbers):
        _ = [mapped[i * _EACH : i * _EACH + _BYTES] for i in batch]


def read_shards(fd: int, numbers: list[int], size: int = 1000) -> None:
    """By reading so many neighbours together, whose samples come in random order."""
    for shard in batches(numbers, size):
        content, first = os.pread(fd, len(shard) * _EACH, shard[0] * _EACH), shard[0]
        for batch in batches(random.sample(shard, len(shard))):
            begins = [(i - first) * _EACH for i in batch]
            _ = [content[begin : begin + _BYTES] for begin in begins]


def read_groups(fd: int, numbers: list[int], size: int) -> None:
    """By reading groups of so many neighbours, which come in the order of `numbers`."""
    for batch in batches(numbers, _BATCH // size):
        contents = [os.pread(fd, size * _EACH, i * size * _EACH) for i in batch]
        _ = [each[k * _EACH : k * _EACH + _BYTES] for each in contents for k in range(size)]


def sample_us(read: Callable[[], None], samples: int) -> float:
    """Microseconds of processor time of a sample."""
    begun_s = time.thread_time()
    read()
    return (time.thread_time() - begun_s) / samples * 1e6


def compare(samples: int, rounds: int) -> None:
    """Prints the cost of each way."""
    keep_freed_memory()
    in_order = list(range(samples))
    shuffled = random.Random(1).sample(in_order, samples)
    with tempfile.TemporaryFile() as file:
        for _ in in_order:
            file.write(os.urandom(_EACH))
        file.flush()
        fd, mapped = file.fileno(), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        arms = {
            "pread": partial(read_each, fd, shuffled),
            "mapping": partial(copy_each, mapped, shuffled),
            "1,000 together": partial(read_shards, fd, in_order),
            "2 together": partial(read_groups, fd, [i for i in shuffled if 2 * i < samples], 2),
            "4 together": partial(read_groups, fd, [i for i in shuffled if 4 * i < samples], 4),
        }
        measured = interleave(
            {n: partial(sample_us, arm, samples) for n, arm in arms.items()}, rounds
        )
    report(ArmComparison("small_reads", "pread", "CPU µs", measured), {"samples": samples})


def requests(shards: int, streams: int, window: int, ahead: int) -> float:
    """Requests for each sample of an order, if so many are read ahead."""
    order = Order([10_000] * shards, streams=streams, window=window, seed=1)
    places, samples = order.locate(np.arange(500_000, 500_000 + ahead))
    lie = np.sort(places * (10_000 + _NEAR + 1) + samples)
    return 1.0 - float((np.diff(lie) <= _NEAR).mean())


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--samples", type=int, default=12_000)
    args = parser.parse_args()
    compare(args.samples, args.rounds)
    for order in _ORDERS:
        found = ", ".join(f"{ahead:,}: {requests(*order, ahead):.3f}" for ahead in _AHEAD)
        print("{} shards, {} streams, window {}: requests of a sample with".format(*order), found)


if __name__ == "__main__":
    main()
