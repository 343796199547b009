"""Processor time per sample of a mixture of many datasets, compared with one dataset of the same
shards.

    python -m benchmarks.data.data_mixture [--sources 20] [--worlds 1 8 64] [--rounds 5] [--kb 10]
        [--repeat 10] [--locate]

The shards are in the page cache. One rank of a world reads batches of 64 samples in the thread that
measures, after as many batches for warming up. A rank sorts the slots of the blocks of a mixture in
which it takes samples, and counts those of all ranks, so the processor time of a sample grows with
the world. Each shard is in its dataset `--repeat` times: small datasets have epochs of few steps,
and each epoch is planned. A mixture reads more shards in turns than one dataset in windows does,
and what a read needs of a shard is then not in a processor's cache: a further arm is one dataset in
a window of all shards. With `--locate`, samples are located and not read.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.scratch import scratch
from benchmarks.data.data_sets import Samples
from data import Dataset, Loader, mixed, open_dataset
from data.order.sample_order import OrderOptions
from data.read.batches.batch_fetcher import keep_freed_memory
from data.read.sample_stream import SampleStream, SingleStream

ONE, WIDE = "one dataset", "one dataset, one window"
EQUAL, RISING = "mixed, equal weights", "mixed, weights 1, 2, 3, ..."
_ROWS, _BATCHES = 64, 192
_STEPS = 1023  # 512 are located at a time, after 1, 2, 4, ...
_SHARDS, _EACH = 4, 400  # shards of each source, samples of each shard


def sample_us(stream: SampleStream, world: int) -> float:
    """Returns microseconds of processor time per sample of a rank."""
    loader = Loader(stream, global_batch=_ROWS * world, rank=0, world_size=world, threads=0)
    took_us = _sample_us(iter(loader), _BATCHES)
    loader.close()
    return took_us


def locate_us(stream: SampleStream, world: int) -> float:
    """Returns microseconds of processor time per sample of a rank until it is known where it is."""
    loader = Loader(stream, global_batch=_ROWS * world, rank=0, world_size=world, threads=0)
    keep_freed_memory()
    took_us = _sample_us(loader._plan.work(0), _STEPS)
    loader.close()
    return took_us


def _sample_us(steps: Iterator[object], count: int) -> float:
    """Takes `count` steps of a rank twice, and returns the microseconds of processor time per
    sample of the second time."""
    for _ in islice(steps, count):
        pass
    begun_s = time.process_time()
    for _ in islice(steps, count):
        pass
    return (time.process_time() - begun_s) / (count * _ROWS) * 1e6


def compare(
    shards: Sequence[str],
    sources: int,
    worlds: Sequence[int],
    rounds: int,
    repeat: int,
    cost_us: Callable[[SampleStream, int], float],
) -> None:
    """Measures the arms in each world, and prints a table for it."""

    def opened(some: Sequence[str]) -> Dataset:
        return open_dataset(list(some) * repeat, repeated_shards="keep")

    datasets = [opened(shards[number::sources]) for number in range(sources)]
    wide = OrderOptions(window=len(shards) * repeat)
    streams: dict[str, SampleStream] = {
        ONE: SingleStream.of(opened(shards), OrderOptions()),
        WIDE: SingleStream.of(opened(shards), wide),
        EQUAL: mixed(datasets, [1.0] * sources),
        RISING: mixed(datasets, [float(number + 1) for number in range(sources)]),
    }
    for world in worlds:
        arms = {name: partial(cost_us, stream, world) for name, stream in streams.items()}
        measured = interleave(arms, rounds)
        comparison = ArmComparison(f"data_mixture_world_{world}", ONE, "CPU µs", measured)
        report(comparison, {"sources": sources, "world": world, "rounds": rounds, "repeat": repeat})


def main() -> None:
    """Writes the shards and measures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sources", type=int, default=20)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kb", type=int, default=10, help="size of a sample")
    parser.add_argument("--repeat", type=int, default=10, help="how often a dataset has a shard")
    parser.add_argument("--locate", action="store_true", help="do not read the samples")
    parser.add_argument("--folder", type=Path, help="where the shards are written, and removed")
    args = parser.parse_args()
    with scratch(args.folder) as folder:
        samples = Samples(_SHARDS * args.sources, _EACH, args.kb * 1000)
        samples.write(folder / "shards")
        shards = sorted(str(path) for path in (folder / "shards").glob("*.tar"))
        cost_us = locate_us if args.locate else sample_us
        compare(shards, args.sources, args.worlds, args.rounds, args.repeat, cost_us)


if __name__ == "__main__":
    main()
