"""How soon the first bytes of a cold cache come, and what a cold epoch takes beyond its bytes.

    python -m benchmarks.data_cold_start [--shards 6] [--mib 64] [--mb-per-s 100]

A loopback server gives each answer no more than that many bytes per second; the shards are read one
after the other, in pieces of 1 MiB, through an empty node store. The server runs in a process of
its own. Printed: seconds until the first 100 KiB are there, the time of the epoch divided by bytes
over bandwidth (1 is the best there is), and the same for a second, warm epoch in GB/s.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from data.cache.entry import ShardRef
from data.cache.store import NodeStore
from tests.services.range_server import range_server

_PIECE = 1 << 20


def _serve(pipe: Connection, shards: int, size: int, bytes_per_s: float) -> None:
    with range_server() as server:
        server.bytes_per_s = bytes_per_s
        body = bytes(range(256)) * (size // 256)
        pipe.send([server.put(f"/{i}.tar", body) for i in range(shards)])
        pipe.recv()


def epoch_s(store: NodeStore, refs: list[ShardRef], size: int) -> tuple[float, float]:
    """Seconds until the first 100 KiB, and for all."""
    began_s, first_s = time.perf_counter(), 0.0
    for ref in refs:
        with store.open(ref) as shard:
            shard.pread(0, 100 << 10)
            first_s = first_s or time.perf_counter() - began_s
            for offset in range(0, size, _PIECE):
                shard.pread(offset, min(_PIECE, size - offset))
    return first_s, time.perf_counter() - began_s


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--mib", type=int, default=64, help="of one shard")
    parser.add_argument("--mb-per-s", type=float, default=100.0)
    args = parser.parse_args()
    size, rate = args.mib << 20, args.mb_per_s * 1e6
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=_serve, args=(theirs, args.shards, size, rate))
    server.start()
    refs = [ShardRef(url, size) for url in ours.recv()]
    with tempfile.TemporaryDirectory() as folder, NodeStore(Path(folder), 1 << 40) as store:
        first_s, cold_s = epoch_s(store, refs, size)
        _, warm_s = epoch_s(store, refs, size)
        total = size * args.shards
        print(f"first 100 KiB after {first_s * 1000:.0f} ms")
        print(f"cold epoch {cold_s:.2f} s, {cold_s / (total / rate):.3f} of bytes over bandwidth")
        print(f"warm epoch {warm_s:.2f} s, {total / warm_s / 1e9:.2f} GB/s")
    ours.send(None)
    server.join()


if __name__ == "__main__":
    main()
