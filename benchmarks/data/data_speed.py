"""Samples per second from shards in the page cache: hpckit beside its peers, and a plain read.

    python -m benchmarks.data.data_speed [--peers FOLDER] [--rounds 5] [--kb 10 100] [--mib 160]

Every measurement is in a new process: an epoch after a first one, which opens the files. The ratio
is of bytes per second to those of a plain read of the same files in the same round, so that tar
headers are on its side. What is missing or came twice in these very epochs is told beside the
speed. Imports are not counted, of no arm. `--only NAME` takes one arm. On a machine that others
use, `--turns N` tells more: the processor time of a sample where all arms take turns in one
process, half an epoch each, N times. What threads of an arm read ahead at the end of its turn is
counted in the next one.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.common.arm_comparison import interleave, write_record
from benchmarks.common.fresh_process import in_fresh
from benchmarks.common.scratch import scratch
from benchmarks.data.data_peers import arm, arms, importable
from benchmarks.data.data_sets import ID_BYTES, SampleCounts, Samples, number_of, seen
from benchmarks.data.readers.data_arms import Reading

RAW = "raw read"
_PIECE = 1 << 20


@dataclass(frozen=True)
class EpochTiming:
    """One measurement."""

    seconds: float
    samples_per_s: float
    mb_per_s: float
    first_s: float = 0.0
    """Until the first batch."""
    cpu_us: float = 0.0
    """Processor time of a sample."""
    seen: tuple[SampleCounts, ...] = ()
    """In each of both epochs; none where there are no samples to tell apart."""


def read_raw(reading: Reading) -> EpochTiming:
    """All files, one after the other, in pieces of 1 MiB."""
    buffer, total, began_s = bytearray(_PIECE), 0, time.perf_counter()
    began_cpu_s = time.process_time()
    for url in reading.urls:
        with Path(url).open("rb", buffering=0) as file:
            while got := file.readinto(buffer):
                total += got
    seconds = time.perf_counter() - began_s
    samples, cpu_us = reading.samples.total, 1e6 * (time.process_time() - began_cpu_s)
    return EpochTiming(seconds, samples / seconds, total / seconds / 1e6, cpu_us=cpu_us / samples)


def read_epoch(name: str, reading: Reading) -> EpochTiming:
    """An epoch of an arm, in the process that this is called in."""
    if name == RAW:
        return read_raw(reading)
    found: list[bytes] = []
    size, epoch = reading.samples.size, reading.samples.total
    batches = arm(name).read(reading)
    opened_s = time.perf_counter()
    found += next(batches)
    first_s = time.perf_counter() - opened_s
    damaged = 0
    while len(found) < 2 * epoch:
        if len(found) == epoch:
            begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        batch = next(batches)
        found += [content[:ID_BYTES] for content in batch]
        damaged += sum(len(content) != size for content in batch)
    seconds, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    numbers = [number_of(content) for content in found]
    told = [seen(part, reading.samples, damaged) for part in (numbers[:epoch], numbers[epoch:])]
    rates = epoch / seconds, epoch * size / seconds / 1e6
    return EpochTiming(seconds, *rates, first_s, 1e6 * cpu_s / epoch, tuple(told))


def compare(names: Sequence[str], reading: Reading, rounds: int, peers: Path | None) -> None:
    """Measure, print a table, write a record."""
    for name in names:
        if name != RAW:
            in_fresh(_prepare, name, reading, peers=peers)
    read_raw(reading)  # into the page cache
    found: dict[str, list[EpochTiming]] = {name: [] for name in names}

    def measure(name: str) -> float:
        found[name].append(in_fresh(read_epoch, name, reading, peers=peers))
        return found[name][-1].mb_per_s

    interleave({name: partial(measure, name) for name in names}, rounds)
    _print(found, reading)
    write_record(
        f"data_speed_{reading.samples.size // 1000}kb",
        {
            "samples": asdict(reading.samples),
            "batch": reading.batch,
            "load": os.getloadavg(),
            "arms": {name: [asdict(one) for one in all_] for name, all_ in found.items()},
        },
    )


def turns(names: Sequence[str], reading: Reading, count: int) -> dict[str, list[float]]:
    """Microseconds of processor time of a sample in each turn of each arm, after an epoch."""
    each = reading.samples.total // reading.batch // 2
    batches = {name: arm(name).read(reading) for name in names}
    for one in batches.values():
        for _ in islice(one, 2 * each):
            pass
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(count):
        for name, one in batches.items():
            begun_s = time.process_time()
            for _ in islice(one, each):
                pass
            found[name].append(1e6 * (time.process_time() - begun_s) / (each * reading.batch))
    return found


def _print_turns(found: dict[str, list[float]]) -> None:
    for name, all_ in found.items():
        tenth = sorted(all_)[len(all_) // 10]
        print(f"{name}: CPU µs {tenth:.2f} (the least tenth), {median(all_):.2f} (median)")


def _print(found: dict[str, list[EpochTiming]], reading: Reading) -> None:
    kb = reading.samples.size // 1000
    table = Table(
        title=f"{reading.samples.total:,} samples of {kb} KB, load {os.getloadavg()[0]:.1f}",
        box=None,
        title_justify="left",
    )
    for name in (
        "arm",
        "samples/s",
        "MB/s",
        "CPU µs",
        "of raw",
        "of webdataset",
        "first batch",
        "of an epoch",
    ):
        table.add_column(name, justify="left" if name in ("arm", "of an epoch") else "right")
    for name, epochs in found.items():
        lost = {str(told) for one in epochs for told in one.seen}
        table.add_row(
            name,
            f"{median(one.samples_per_s for one in epochs):,.0f}",
            f"{median(one.mb_per_s for one in epochs):,.0f}",
            f"{median(one.cpu_us for one in epochs):,.2f}",
            _ratio(epochs, found.get(RAW)),
            _ratio(epochs, found.get("webdataset")),
            f"{1000 * median(one.first_s for one in epochs):,.0f} ms" if lost else "",
            "; ".join(sorted(lost)),
        )
    Console(width=120).print(table)


def _ratio(epochs: Sequence[EpochTiming], base: Sequence[EpochTiming] | None) -> str:
    if base is None or base is epochs:
        return ""
    ratios = [one.mb_per_s / other.mb_per_s for one, other in zip(epochs, base, strict=True)]
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _prepare(name: str, reading: Reading) -> None:
    arm(name).prepare(reading)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kb", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--mib", type=int, default=160, help="of each data set")
    parser.add_argument("--turns", type=int, default=0)
    parser.add_argument("--only", action="append", help="an arm; may be repeated")
    parser.add_argument("--folder", type=Path, help="where to work")
    args = parser.parse_args()
    names = [RAW, *arms(partial(in_fresh, importable, peers=args.peers))]
    names = [name for name in names if not args.only or name in (RAW, *args.only)]
    with scratch(args.folder) as folder:
        for kb in args.kb:
            each = max(1, (args.mib << 20) // (16 * kb * 1000) // 4) * 4  # whole batches
            samples = Samples(16, each, kb * 1000)
            reading = Reading(folder / f"{kb}", folder / f"{kb}-converted", samples)
            samples.write(reading.tars)
            compare(names, reading, args.rounds, args.peers)
            if args.turns:
                arms_ = [name for name in names if name != RAW]
                _print_turns(in_fresh(turns, arms_, reading, args.turns, peers=args.peers))


if __name__ == "__main__":
    main()
