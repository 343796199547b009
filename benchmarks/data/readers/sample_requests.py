"""The requests of a shuffled epoch of small samples at a server, with and without a small cache.

    python -m benchmarks.data.readers.sample_requests [--shards 32] [--each 100] [--kb 10]

A loader reads one epoch in batches of 64 from a server on this machine, which counts requests.
Arms are (streams, window, shards that the cache may hold; 0: there is none). Requests for each
sample, fetched bytes / bytes of the dataset, and missing and double samples are printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.common.scratch import scratch
from benchmarks.data.data_sets import EXTENSION, Samples, number_of, seen
from data.index.index_build import build_index
from data.read.dataset import open_dataset
from data.read.loader import Loader
from data.source.sources import Sources
from tests.services.range_server import RangeServer, range_server

ARMS = ((48, 8, 0), (4, 1, 0), (48, 8, 8), (4, 1, 8), (8, 1, 12), (4, 2, 12))


def epoch(server: RangeServer, folder: Path, samples: Samples, arm: tuple[int, int, int]) -> str:
    """Reads an epoch, and returns what it took."""
    streams, window, cached = arm
    size = len(next(one.body for path, one in server.objects.items() if path.endswith(".tar")))
    cache = folder / f"cache-{streams}-{window}-{cached}"
    dataset = open_dataset(folder / "index", cache=cache, cache_bytes=cached * (size + 4096))
    asked, sent = len(server.headers), server.sent
    loader = Loader(dataset, global_batch=64, epochs=1, streams=streams, window=window)
    found = [number_of(sample[EXTENSION]) for batch in loader for sample in batch.data]
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
    args = parser.parse_args()
    samples = Samples(args.shards, args.each, args.kb * 1000)
    with scratch(None) as folder, range_server() as server:
        samples.write(folder / "shards")
        urls = []
        for path in sorted((folder / "shards").glob("*.tar")):
            urls.append(server.put(f"/{path.name}", path.read_bytes()))
        build_index(urls, folder / "index", source=Sources())
        for arm in ARMS:
            told = epoch(server, folder, samples, arm)
            print("{} streams, window {}, cache of {} shards:".format(*arm), told, flush=True)


if __name__ == "__main__":
    main()
