"""A cold epoch of several nodes from one slow source: with caches of their own, and with caches
that they share.

    python -m benchmarks.data.data_cache_peers [--nodes 4] [--shards 16] [--mib 16] [--kb 100]
        [--streams 1 6] [--epochs 1] [--mb-per-s 100] [--rounds 3]

A loopback server gives all nodes together no more than that many bytes per second. Each node is a
process with a cache of its own, which reads its share of an epoch by a loader. With 1 stream, all
nodes need all shards; with 6 streams of 4 nodes, some of them. Printed, for each number of streams:
bytes that the source sent / bytes of the data set, seconds of the epochs / bytes over bandwidth,
and missing and doubled samples, of which there must be none.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from benchmarks.common.arm_comparison import write_record
from benchmarks.data.data_sets import EXTENSION, Samples, number_of, seen
from benchmarks.data.shard_source import ShardSource, shard_source
from data import CachePeers, Loader, open_dataset

_BATCH = 64


@dataclass(frozen=True)
class Epochs:
    """What the epochs of all nodes took."""

    seconds: float
    source_bytes: int
    missing: int
    doubled: int


def _node(
    pipe: Connection, url: str, folder: str, rank: int, nodes: int, options: dict[str, Any]
) -> None:
    """One node, for some epochs; the pipe is the exchange, and then tells when to begin."""

    def exchange(value: Any) -> Sequence[Any]:
        pipe.send(value)
        found: Sequence[Any] = pipe.recv()
        return found

    peers = None
    if options["shares"]:
        peers = CachePeers.connect(folder, exchange, address="127.0.0.1", node=f"node{rank}")
    dataset = open_dataset(f"{url}/", cache=folder, cache_bytes=1 << 40, peers=peers)
    loader = Loader(
        dataset,
        global_batch=_BATCH,
        rank=rank,
        world_size=nodes,
        streams=options["streams"],
        remix_every=1,
        epochs=options["epochs"],
        tail="pad",
        uneven="pad",
    )
    exchange(None)
    numbers: list[int] = []
    for batch in loader:
        for sample, counts in zip(batch.data, batch.mask, strict=True):
            if counts:
                numbers.append(number_of(sample[EXTENSION]))
    pipe.send(numbers)
    pipe.recv()  # its cache is there until all have ended
    loader.close()
    dataset.store.close()


def run_epochs(
    source: ShardSource, samples: Samples, nodes: int, options: dict[str, Any]
) -> Epochs:
    """Read some epochs on all nodes, with empty caches."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        pipes, processes = [], []
        for rank in range(nodes):
            ours, theirs = multiprocessing.Pipe()
            arguments = (theirs, source.url, f"{folder}/{rank}", rank, nodes, options)
            processes.append(context.Process(target=_node, args=arguments))
            processes[-1].start()
            pipes.append(ours)
        for _ in range(5 if options["shares"] else 1):
            gathered = [pipe.recv() for pipe in pipes]
            before, began_s = source.set(), time.perf_counter()
            for pipe in pipes:
                pipe.send(gathered)
        numbers = [number for pipe in pipes for number in pipe.recv()]
        seconds = time.perf_counter() - began_s
        source_bytes = source.set() - before
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()
    counts = seen(numbers, samples)
    doubled = len(numbers) - options["epochs"] * samples.total
    return Epochs(seconds, source_bytes, counts.missing, doubled)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--mib", type=int, default=16, help="of one shard")
    parser.add_argument("--kb", type=int, default=100, help="of one sample")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 6])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--mb-per-s", type=float, default=100.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rate, size = args.mb_per_s * 1e6, args.kb * 1000
    samples = Samples(args.shards, max(1, (args.mib << 20) // size), size)
    record: list[dict[str, Any]] = []
    with shard_source(samples, total_bytes_per_s=rate) as source:
        total = sum(ref.bytes or 0 for ref in source.refs)
        for streams in args.streams:
            found: dict[bool, list[Epochs]] = {False: [], True: []}
            for turn in range(args.rounds):
                for shares in (False, True) if turn % 2 == 0 else (True, False):
                    options = {"shares": shares, "streams": streams, "epochs": args.epochs}
                    one = run_epochs(source, samples, args.nodes, options)
                    found[shares].append(one)
                    record.append({**options, **vars(one), "bytes": total})
            for shares, all_rounds in found.items():
                name = "shared caches" if shares else "caches of their own"
                ratios = [one.source_bytes / total for one in all_rounds]
                times = [one.seconds / (total / rate) for one in all_rounds]
                wrong = sum(one.missing + one.doubled for one in all_rounds)
                print(
                    f"{streams} streams, {args.nodes} nodes, {name}: source bytes / data set"
                    f" {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), epochs /"
                    f" bytes over bandwidth {median(times):.2f} ({min(times):.2f} to"
                    f" {max(times):.2f}), {wrong} samples missing or doubled",
                    flush=True,
                )
    write_record("data_cache_peers", {"settings": vars(args), "arms": record})


if __name__ == "__main__":
    main()
