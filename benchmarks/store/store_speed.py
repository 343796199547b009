"""What the store costs beside the disk: saves, verification and restoring against plain files.

    python -m benchmarks.store.store_speed [--gib 1] [--width 2048] [--rounds 5] [--folder /tmp]

One process, a state as of training; narrower layers make more and smaller chunks. Speeds are in GB
of state per second; the CPU time of all threads, user and system, is told beside them.

- *Writing*, everything durable at the end. Base: the same bytes, one thread, files of 64 MiB,
  fsync after each. Every save is of a state in which every number has changed.
- *Reading*. Base: the objects of the raw save, one thread, each file whole into memory (`readinto`,
  one buffer of a file's size). Once from the page cache, and once from the disk: before each arm,
  outside its time, all files are taken out of the page cache; what the disk itself caches stays.
  From the page cache there are two more ways of not looking at what is read: into a buffer that
  begins at a page, as numpy's do not, which is faster to copy into; and in 1 MiB pieces, into a
  buffer that stays in the processor's cache.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.number_arguments import positive_float, positive_int
from benchmarks.common.scratch import scratch
from benchmarks.common.stopwatch import Stopwatch
from benchmarks.common.training_state import TrainingState
from benchmarks.store.store_readers import PLAIN_READ, Readers
from benchmarks.store.store_writers import PLAIN_WRITE, Writers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=positive_float, default=1.0)
    parser.add_argument("--width", type=positive_int, default=2048, help="of the model's layers")
    parser.add_argument("--rounds", type=positive_int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    settings = parser.parse_args()
    with scratch(settings.folder) as folder:
        state = TrainingState(int(settings.gib * (1 << 30)), settings.width)
        _compare(folder, state, settings.rounds)


def _compare(folder: Path, state: TrainingState, rounds: int) -> None:
    writers = Writers(folder, state)
    try:
        _measure("store_speed_write", PLAIN_WRITE, writers.watch, rounds)
    finally:
        writers.close()
    for arm, count in writers.objects.items():
        print(f"objects per save: {count:4}  {arm}")
    readers = Readers(folder, state)
    _measure("store_speed_read", PLAIN_READ, readers.cached, rounds)
    _measure("store_speed_read_cold", PLAIN_READ, readers.cold, rounds)


def _measure(name: str, base: str, watch: Stopwatch, rounds: int) -> None:
    measured = interleave(watch.arms(), rounds + 1)
    kept = {arm: speeds[1:] for arm, speeds in measured.items()}  # the first round warms up
    cpu = {arm: watch.cpu_per_gb(arm) for arm in kept}
    report(
        ArmComparison(name, base, "GB/s", kept),
        {"bytes": watch.nbytes, "rounds": rounds, "cpu_s_per_gb": cpu},
    )
    for arm, seconds in cpu.items():
        print(f"CPU seconds per GB: {seconds:6.3f}  {arm}")


if __name__ == "__main__":
    main()
