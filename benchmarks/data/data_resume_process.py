"""Resumes a loader and says, as JSON, how long that took: what `data_resume` starts.

    python -m benchmarks.data.data_resume_process FOLDER STATE BATCH

It imports nothing that a trainer would not, so that its memory is the pipeline's.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


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
    dataset = open_dataset(folder)
    opened_s = time.perf_counter()
    loader = Loader(dataset, global_batch=int(batch))
    loader.load_state_dict(json.loads(state))
    first = next(iter(loader))
    done_s = time.perf_counter()
    loader.close()
    told = {
        "import_s": imported_s - begun_s,
        "open_s": opened_s - imported_s,
        "first_s": done_s - opened_s,
        "import_rss": imported_rss,
        "rss": peak_rss(),
        "keys": first.keys,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
