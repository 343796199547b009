"""How soon the first bytes of a cold cache come, and what a cold epoch takes beyond its bytes.

    python -m benchmarks.data_cold_start [--shards 6] [--mib 64] [--mb-per-s 100] [--kb 100]

A loopback server gives each answer no more than that many bytes per second; the shards are read one
after the other, in pieces of 1 MiB, through an empty node store. The server runs in a process of
its own. Printed: seconds until the first 100 KiB are there, the time of the epoch divided by bytes
over bandwidth (1 is the best there is), and the same for a second, warm epoch in GB/s.

Then a loader reads the same shards through another empty cache, shuffled: told are the times of
its first batch, of one sample and of 64, beside what their bytes alone would take.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.data_sets import Samples
from data import Loader, open_dataset
from data.cache.entry import ShardRef
from data.cache.store import NodeStore
from tests.services.range_server import range_server

_PIECE = 1 << 20
_BATCHES = (1, 64)


def _serve(pipe: Connection, samples: Samples, bytes_per_s: float) -> None:
    with tempfile.TemporaryDirectory() as folder, range_server() as server:
        samples.write(Path(folder))
        for path in sorted(Path(folder).iterdir()):
            server.put(f"/{path.name}", path.read_bytes())
        server.bytes_per_s = bytes_per_s
        tars = {path.name: path.stat().st_size for path in sorted(Path(folder).glob("*.tar"))}
        pipe.send([(f"{server.url}/{name}", size) for name, size in tars.items()])
        pipe.recv()


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


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--mib", type=int, default=64, help="of one shard")
    parser.add_argument("--mb-per-s", type=float, default=100.0)
    parser.add_argument("--kb", type=int, default=100, help="of one sample")
    args = parser.parse_args()
    rate, size = args.mb_per_s * 1e6, args.kb * 1000
    samples = Samples(args.shards, max(1, (args.mib << 20) // size), size)
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=_serve, args=(theirs, samples, rate))
    server.start()
    refs = [ShardRef(url, length) for url, length in ours.recv()]
    with tempfile.TemporaryDirectory() as folder, NodeStore(Path(folder), 1 << 40) as store:
        first_s, cold_s = epoch_s(store, refs)
        _, warm_s = epoch_s(store, refs)
        total = sum(ref.bytes or 0 for ref in refs)
        print(f"first 100 KiB after {first_s * 1000:.0f} ms")
        print(f"cold epoch {cold_s:.2f} s, {cold_s / (total / rate):.3f} of bytes over bandwidth")
        print(f"warm epoch {warm_s:.2f} s, {total / warm_s / 1e9:.2f} GB/s")
    for batch in _BATCHES:
        seconds = first_batch_s(refs[0].url.rpartition("/")[0], batch)
        least_ms = 1000 * batch * size / rate
        print(
            f"first batch of {batch} after {seconds * 1000:.0f} ms; its bytes take {least_ms:.0f}"
        )
    ours.send(None)
    server.join()


if __name__ == "__main__":
    main()
