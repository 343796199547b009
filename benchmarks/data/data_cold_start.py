"""How soon the first bytes of a cold cache come, and what a cold epoch takes beyond its bytes.

    python -m benchmarks.data.data_cold_start [--shards 6] [--mib 64] [--mb-per-s 100] [--kb 100]
        [--latency-ms 0 30] [--rounds 7] [--ranges 1 4]

The shards are read one after the other, in pieces of 1 MiB, through an empty node store, from a
loopback server in a process of its own, which sends no more than that many bytes per second: of
each answer, as object stores do, and then of all together, as a network does. With each number of
ranges of a shard at a time, printed are seconds until the first 100 KiB are there, and the time of
the epoch divided by bytes over that bandwidth: 1 is the best that one connection can do. Then a
second, warm epoch in GB/s.

Then loaders read the same shards through other empty caches, shuffled, from a server that waits
before each answer. Told is the time of the first batch, of one sample and of 64, divided by that of
as many bare requests for so many bytes, by a new client, 32 at a time.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.common.arm_comparison import ArmComparison, interleave
from benchmarks.data.data_sets import Samples
from benchmarks.data.shard_source import ShardSource, shard_source
from data import Loader, open_dataset
from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import NodeStore
from data.source.host_limits import Limits
from data.source.sources import Sources

_PIECE = 1 << 20
_BATCHES = (1, 64)
_AT_A_TIME = 32


def epoch_s(store: NodeStore, refs: list[ShardRef]) -> tuple[float, float]:
    """Seconds until the first 100 KiB, and for all."""
    began_s, first_s = time.perf_counter(), 0.0
    for ref in refs:
        assert ref.bytes is not None
        with store.open(ref) as shard:
            shard.pread(0, 100 << 10)
            first_s = first_s or time.perf_counter() - began_s
            for offset in range(0, ref.bytes, _PIECE):
                shard.pread(offset, min(_PIECE, ref.bytes - offset))
    return first_s, time.perf_counter() - began_s


def compare_ranges(source: ShardSource, ranges: Sequence[int], rate: float) -> None:
    """Prints what cold epochs take by so many ranges of a shard at a time, and a warm one."""
    refs = source.refs
    total = sum(ref.bytes or 0 for ref in refs)
    for each, all_ in ((rate, None), (None, rate)):
        source.set(bytes_per_s=each, total_bytes_per_s=all_)
        for number in ranges:
            sources = Sources(limits=Limits(ranges=number))
            with (
                tempfile.TemporaryDirectory() as folder,
                NodeStore(Path(folder), 1 << 40, sources=sources) as store,
            ):
                first_s, cold_s = epoch_s(store, refs)
                _, warm_s = epoch_s(store, refs)
            what = "all together" if each is None else "each answer"
            print(
                f"{rate / 1e6:g} MB/s of {what}, {number} at a time: first 100 KiB after "
                f"{first_s * 1000:.0f} ms; cold epoch {cold_s:.2f} s, "
                f"{cold_s / (total / rate):.3f} of bytes over bandwidth"
            )
    print(f"warm epoch {warm_s:.2f} s, {total / warm_s / 1e9:.2f} GB/s")


def first_batch_s(url: str, batch: int) -> float:
    """Seconds from the open dataset to the first batch, through an empty cache."""
    # a download that is under way goes on, for whoever else may wait for it
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        dataset = open_dataset(f"{url}/", cache=folder, cache_bytes=1 << 40)
        loader = Loader(dataset, global_batch=batch)
        began_s = time.perf_counter()
        next(iter(loader))
        seconds = time.perf_counter() - began_s
        loader.close()
        dataset.store.close()
    return seconds


def requests_s(refs: list[ShardRef], batch: int, size: int) -> float:
    """Seconds for as many requests of `size` bytes, anywhere, by a client that is new."""
    chosen = random.Random(batch)
    places = [
        (ref.url, chosen.randrange((ref.bytes or 0) - size), size)
        for ref in chosen.choices(refs, k=batch)
    ]
    sources = Sources()
    with ThreadPoolExecutor(min(_AT_A_TIME, batch)) as pool:
        began_s = time.perf_counter()
        list(pool.map(lambda place: sources.read(*place), places))
        return time.perf_counter() - began_s


def compare_first(refs: list[ShardRef], batch: int, size: int, rounds: int) -> str:
    """The first batch beside its requests."""
    url = refs[0].url.rpartition("/")[0]
    first_batch_s(url, batch)  # the indexes of all shards are kept from now on
    arms = {
        "bare": partial(requests_s, refs, batch, size),
        "first": partial(first_batch_s, url, batch),
    }
    found = ArmComparison("data_cold_start", "bare", "s", interleave(arms, rounds))
    least_ms, took_ms = (1000 * found.spread(name).median for name in arms)
    ratio = found.ratio("first")
    return f"first batch of {batch} after {took_ms:.0f} ms; bare {least_ms:.0f} ms; {ratio}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--mib", type=int, default=64, help="of one shard")
    parser.add_argument("--mb-per-s", type=float, default=100.0)
    parser.add_argument("--kb", type=int, default=100, help="of one sample")
    parser.add_argument("--latency-ms", type=float, nargs="+", default=[0, 30])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranges", type=int, nargs="+", default=[1, 4], help="of one shard")
    args = parser.parse_args()
    rate, size = args.mb_per_s * 1e6, args.kb * 1000
    samples = Samples(args.shards, max(1, (args.mib << 20) // size), size)
    with shard_source(samples) as source:
        refs = source.refs
        compare_ranges(source, args.ranges, rate)
        source.set(bytes_per_s=rate, total_bytes_per_s=None)
        for latency_ms in args.latency_ms:
            source.set(delay_s=latency_ms / 1000)
            for batch in _BATCHES:
                told = compare_first(refs, batch, size, args.rounds)
                print(f"{latency_ms:g} ms before each answer: {told}")


if __name__ == "__main__":
    main()
