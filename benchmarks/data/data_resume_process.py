"""Resumes a loader and says, as JSON, how long that took: what `data_resume` starts.

    python -m benchmarks.data.data_resume_process FOLDER STATE BATCH

It imports nothing that a trainer would not, so that its memory is the pipeline's.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Literal


def peak_rss() -> int:
    """Bytes that this process had in memory at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("the kernel does not tell VmHWM")


def main(folder: str, state: str, batch: str) -> None:
    """See the module."""
    begun_s = time.perf_counter()
    from data.read.dataset import open_dataset
    from data.read.loader import Loader

    imported_s, imported_rss = time.perf_counter(), peak_rss()
    imported_cpu_s = time.process_time()
    dataset = open_dataset(folder)
    opened_s = time.perf_counter()
    saved = json.loads(state)
    has_shards = "shards" in saved  # as that of a loader whose dataset may grow
    grow: Literal["next_epoch", "refuse"] = "next_epoch" if has_shards else "refuse"
    loader = Loader(dataset, global_batch=int(batch), grow=grow)
    loader.load_state_dict(saved)
    first = next(iter(loader))
    done_s, cpu_s = time.perf_counter(), time.process_time() - imported_cpu_s
    loader.close()
    told = {
        "import_s": imported_s - begun_s,
        "open_s": opened_s - imported_s,
        "first_s": done_s - opened_s,
        "cpu_s": cpu_s,
        "import_rss": imported_rss,
        "rss": peak_rss(),
        "keys": first.keys,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
