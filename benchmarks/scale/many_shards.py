"""Processor time and elapsed time of the index of many small shards.

    python -m benchmarks.scale.many_shards [--shards 10000] [--samples 10] [--bytes 1000]

The shards are in the page cache and have no index. Then: the same again, of which nothing is read,
a start of a loader by the manifest, and one without, which looks at each shard and its index.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.arm_comparison import write_record
from benchmarks.common.machine import tree_cpu_s
from benchmarks.common.number_arguments import positive_int
from benchmarks.common.scratch import scratch
from data import Loader, open_dataset
from data.index.index_build import build_index
from data.write.shard_file import ShardFile


def write_shards(folder: Path, shards: int, samples: int, size: int) -> list[str]:
    """Writes shards of the same content, without their index; returns their paths."""
    folder.mkdir()
    shard = ShardFile(folder / "first.tar")
    for sample in range(samples):
        shard.add(f"{sample:06d}.bin", bytes(size))
    shard.finish()
    content = shard.path.read_bytes()
    shard.path.unlink()
    found = [folder / f"{number:06d}.tar" for number in range(shards)]
    for path in found:
        path.write_bytes(content)
    return [str(path) for path in found]


def first_batch(shards: Path | list[str]) -> None:
    """Opens a data set and reads a batch."""
    loader = Loader(open_dataset(shards), global_batch=64)
    next(iter(loader))
    loader.close()


def timed(what: str, call: Callable[[], object]) -> dict[str, float]:
    """Prints and returns the seconds that a call takes."""
    begun_s, begun_cpu_s = time.perf_counter(), tree_cpu_s()
    call()
    found = {"cpu_s": tree_cpu_s() - begun_cpu_s, "s": time.perf_counter() - begun_s}
    print(f"{what}: {found['cpu_s']:.2f} s of processor time, {found['s']:.2f} s")
    return found


def main() -> None:
    """Writes the shards and measures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=positive_int, default=10_000)
    parser.add_argument("--samples", type=positive_int, default=10, help="of each shard")
    parser.add_argument("--bytes", type=positive_int, default=1000, help="of a sample")
    parser.add_argument("--folder", type=Path, help="where the shards are written, and removed")
    args = parser.parse_args()
    with scratch(args.folder) as folder:
        shards = write_shards(folder / "shards", args.shards, args.samples, args.bytes)
        place = folder / "shards"
        steps: dict[str, Callable[[], object]] = {
            f"index of {args.shards} shards": lambda: build_index(place),
            "the same again": lambda: build_index(place),
            "first batch by the manifest": lambda: first_batch(place),
            "first batch without it": lambda: first_batch(shards),
        }
        found = {what: timed(what, call) for what, call in steps.items()}
        write_record("many_shards", {**vars(args), "folder": str(args.folder), "steps": found})


if __name__ == "__main__":
    main()
