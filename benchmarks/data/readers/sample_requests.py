"""The requests of a shuffled epoch of small samples at a server, with and without a small cache.

    python -m benchmarks.data.readers.sample_requests [--shards 32] [--each 100] [--kb 10]

A loader reads one epoch in batches of 64 from a server on this machine, which counts requests; the
consumer takes `--ms` for each batch. Arms are (streams, window, shards that the cache may hold; 0:
there is none). Requests for each sample, fetched bytes / bytes of the dataset, and missing and
double samples are printed. An epoch takes seconds here and hours elsewhere, so what the reader
ahead does every few seconds it does here `HURRY` times as often.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.common.scratch import scratch
from benchmarks.data.data_sets import EXTENSION, Samples, number_of, seen
from data.index.index_build import build_index
from data.read.batches import shard_prefetch
from data.read.dataset import open_dataset
from data.read.loader import Loader
from data.source.sources import Sources
from tests.services.range_server import RangeServer, range_server

HURRY = 50
ARMS = ((48, 8, 0), (4, 1, 0), (4, 1, 8), (4, 1, 12), (8, 1, 16), (4, 2, 16), (48, 8, 8))


def epoch(
    server: RangeServer,
    folder: Path,
    samples: Samples,
    arm: tuple[int, int, int],
    busy_s: float,
) -> str:
    """Reads an epoch, and returns what it took."""
    streams, window, cached = arm
    size = len(next(one.body for path, one in server.objects.items() if path.endswith(".tar")))
    cache = folder / f"cache-{streams}-{window}-{cached}"
    room = cached * (size + 4096)
    dataset = open_dataset(folder / "all.index", cache=cache if room else None, cache_bytes=room)
    asked, sent = len(server.headers), server.sent
    loader = Loader(dataset, global_batch=64, epochs=1, streams=streams, window=window)
    found = []
    for batch in loader:
        found += [number_of(sample[EXTENSION]) for sample in batch.data]
        time.sleep(busy_s)
    loader.close()
    requests = (len(server.headers) - asked) / samples.total
    share = (server.sent - sent) / (size * samples.shards)
    return f"{requests:.3f} requests of a sample, {share:.2f} of the bytes; {seen(found, samples)}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--each", type=int, default=100, help="samples of a shard")
    parser.add_argument("--kb", type=int, default=10, help="size of a sample")
    parser.add_argument("--ms", type=float, default=200, help="time of the consumer for a batch")
    args = parser.parse_args()
    shard_prefetch._AGAIN_S /= HURRY
    shard_prefetch._TICK_S /= HURRY
    samples = Samples(args.shards, args.each, args.kb * 1000)
    with scratch(None) as folder, range_server() as server:
        samples.write(folder / "shards")
        urls = []
        for path in sorted((folder / "shards").glob("*.tar")):
            urls.append(server.put(f"/{path.name}", path.read_bytes()))
        build_index(urls, folder / "all.index", source=Sources())
        for arm in ARMS:
            told = epoch(server, folder, samples, arm, args.ms / 1000)
            print("{} streams, window {}, cache of {} shards:".format(*arm), told, flush=True)


if __name__ == "__main__":
    main()
