"""Reads all of some shards through a node store and says what it met with; run as a program."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from blake3 import blake3

from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import NodeStore
from data.source.retry import SourceRetryPolicy
from data.source.sources import Sources


def body_of(name: str, size: int) -> bytes:
    """The bytes of the shard `name` of the tests."""
    return blake3(name.encode()).digest(length=size)


def main() -> None:
    """Arguments: folder, budget, URL of the shards' folder, names with commas, size, seed."""
    folder, budget, base, names, size_text, seed = sys.argv[1:]
    size, rng = int(size_text), random.Random(int(seed))
    order = names.split(",")
    rng.shuffle(order)
    sources = Sources(retry=SourceRetryPolicy(budget_s=20.0, first_s=0.01))
    with NodeStore(Path(folder), int(budget), sources=sources, free_reserve=0) as store:
        for name in order:
            body = body_of(name, size)
            with store.open(ShardRef(f"{base}/{name}", size, blake3(body).hexdigest())) as shard:
                for _ in range(20):
                    start = rng.randrange(size)
                    count = min(rng.randrange(100_000), size - start)
                    if shard.pread(start, count) != body[start : start + count]:
                        sys.exit(f"{name}: wrong bytes at {start}")
                if shard.pread(0, size) != body:
                    sys.exit(f"{name}: wrong bytes")
        metrics = store.metrics
        print(json.dumps({"fetched": metrics.bytes_fetched, "bypasses": metrics.bypasses}))


if __name__ == "__main__":
    main()
