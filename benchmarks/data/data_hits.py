"""How much of an epoch a cache answers that holds half of the data: hpckit's eviction beside LRU.

    python -m benchmarks.data.data_hits [--shards 48] [--kib 512] [--share 0.5] [--epochs 3]

A loader reads shuffled epochs through the real node store, from a server on this machine that
counts what it sends. Each arm has a cache of its own, that holds `--share` of the shards; both see
the same order. "LRU" is the same store without plans: what was opened longest ago makes room. Told
is the share of an epoch's bytes that did not come from the server, of each epoch but the first;
more than `--share` is not to be had, as each shard is used once an epoch, but for those that
are in use when the epoch ends. An epoch takes a second here and hours elsewhere, so what the
reader ahead does every few seconds it does here `HURRY` times as often.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.arm_comparison import write_record
from benchmarks.common.scratch import scratch
from benchmarks.data.data_sets import EXTENSION, Samples, number_of, seen
from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import NodeStore
from data.index.manifest import open_manifest
from data.read.batches import shard_prefetch
from data.read.dataset import Dataset
from data.read.loader import Loader
from data.read.shards.open_descriptors import OPEN_SHARDS
from data.source.sources import Sources
from tests.services.range_server import RangeServer, range_server

SAMPLE = 16_000  # bytes
HURRY = 100


class Unplanned(NodeStore):
    """Keeps to itself what will be read, so that only the past counts."""

    def publish_plan(
        self, uses: Sequence[tuple[ShardRef | str, float]], *, since_s: float | None = None
    ) -> None: ...


def hits(
    dataset: Dataset, samples: Samples, epochs: int, batch: int, options: dict[str, Any]
) -> tuple[list[float], list[str]]:
    """Of each epoch: the share of bytes that were there, and what is missing or came twice."""
    metrics = dataset.store.metrics
    loader = Loader(dataset, global_batch=batch, epochs=epochs, threads=1, prefetch=1, **options)
    total, before = int(dataset.manifest.bytes.sum()), 0
    shares: list[float] = []
    told: list[str] = []
    numbers: list[int] = []
    for read in loader:
        numbers += [number_of(sample[EXTENSION]) for sample in read.data]
        if len(numbers) >= samples.total:
            fetched = metrics.bytes_fetched
            shares.append(1 - (fetched - before) / total)
            told.append(str(seen(numbers[: samples.total], samples)))
            numbers, before = numbers[samples.total :], fetched
    loader.close()
    return shares, told


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=48)
    parser.add_argument("--kib", type=int, default=512, help="of a shard")
    parser.add_argument("--share", type=float, default=0.5, help="of the data that has room")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--window", type=int, default=2)
    parser.add_argument("--mb-per-s", type=float, help="of each answer of the server")
    parser.add_argument("--open", type=int, help="shards that the reader holds open at most")
    args = parser.parse_args()
    shard_prefetch._AGAIN_S /= HURRY
    shard_prefetch._TICK_S /= HURRY
    each = max(4, args.kib * 1024 // SAMPLE // 4 * 4)
    samples = Samples(args.shards, each, SAMPLE)
    options = {"streams": args.streams, "window": args.window, "downloads": 2}
    record = {}
    with scratch() as folder, range_server() as server:
        samples.write(folder / "tars")
        _serve(server, folder / "tars")
        server.bytes_per_s = args.mb_per_s and args.mb_per_s * 1e6
        manifest = open_manifest(f"{server.url}/dataset.index", source=Sources())
        budget = int(args.share * int(manifest.bytes.sum()))
        print(
            f"{args.shards} shards, room for {args.share:.0%} of them, "
            f"load {os.getloadavg()[0]:.1f}"
        )
        for name, kind in (("hpckit", NodeStore), ("LRU", Unplanned)):
            with kind(folder / name, budget, free_reserve=0, sources=Sources()) as store:
                dataset = Dataset(manifest, store)
                OPEN_SHARDS._limit = args.open or OPEN_SHARDS._limit
                shares, told = hits(dataset, samples, args.epochs, each, options)
                metrics = store.metrics
            later = shares[1:]
            print(
                f"{name}: hits {', '.join(f'{share:.1%}' for share in later)}; "
                f"{metrics.evictions} evictions, {metrics.bypasses} reads past the cache, "
                f"{metrics.no_room} without room; of epochs: {'; '.join(sorted(set(told)))}"
            )
            record[name] = {"hits": shares, "evictions": metrics.evictions}
    write_record("data_hits", {"settings": vars(args), "arms": record})


def _serve(server: RangeServer, tars: Path) -> None:
    for path in sorted(tars.iterdir()):
        server.put(f"/{path.name}", path.read_bytes())


if __name__ == "__main__":
    main()
