"""One rank of a job that reads an epoch over a cache, and is killed at any moment; a program.

What a real trainer saves with its checkpoint is the loader's state; here each batch is a step, and
a line of a file its checkpoint: what was delivered, and the state after it, by one write.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from blake3 import blake3

from data import Batch, Loader, open_dataset
from data.source.retry import SourceRetryPolicy
from data.source.sources import Sources

GLOBAL_BATCH = 24


def digests(items: list[dict[str, Any]]) -> list[str]:
    """A hash of the bytes of each sample."""
    return [blake3(item["bin"]).hexdigest() for item in items]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """What a rank has written; a line that its death cut short does not count."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def main() -> None:
    """Arguments: manifest, cache, its bytes, rank, world, file, readers, seconds of a step."""
    manifest, cache, budget, rank, world, out, workers, step_s = sys.argv[1:]
    path = Path(out)
    before = lines_of(path)
    sources = Sources(retry=SourceRetryPolicy(budget_s=30.0, first_s=0.01))
    dataset = open_dataset(manifest, cache=cache, cache_bytes=int(budget), sources=sources)
    with dataset.store:
        loader = Loader(
            dataset,
            global_batch=GLOBAL_BATCH,
            rank=int(rank),
            world_size=int(world),
            seed=5,
            streams=8,
            window=2,
            epochs=1,
            tail="pad",
            collate=digests,
            workers=int(workers),
        )
        if before:
            loader.load_state_dict(before[-1]["state"])
        with path.open("ab", buffering=0) as file:
            _mend(path)
            for batch in loader:
                file.write(_line(batch, loader.state_dict()))
                time.sleep(random.uniform(0, 2 * float(step_s)))
        loader.close()
    print("epoch done", flush=True)


def _line(batch: Batch, state: dict[str, Any]) -> bytes:
    real = batch.mask.tolist()
    rows = [
        [key, digest]
        for key, digest, counts in zip(batch.keys, batch.data, real, strict=True)
        if counts
    ]
    return json.dumps({"rows": rows, "state": state}).encode() + b"\n"


def _mend(path: Path) -> None:
    """Cut off a line that a death has left without its end."""
    content = path.read_bytes()
    os.truncate(path, content.rfind(b"\n") + 1)


if __name__ == "__main__":
    main()
