"""The share of a training step that is spent waiting for data.

    python -m benchmarks.data.data_stall [--peers FOLDER] [--step-ms 10] [--batch 64] [--kb 100]

A step is a sleep, as if the processor had nothing to do with it. Every measurement is in a new
process, after the first batches; shards are in the page cache. Peers have two workers, as they
need; hpckit has its reader threads. In the same run: at what rate samples had to come, and did, and
what is missing or came twice in the epochs that were measured.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
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

LEFT_OUT = (
    "hpckit, no threads", "hpckit, tar.zst", "webdataset, shuffled", "hugging face", "energon",
    "litdata, views",
)  # fmt: skip
_WARM_UP = 8  # batches


@dataclass(frozen=True)
class Stall:
    """One measurement."""

    wait_share: float
    slowest_ms: float
    """Of the 99th percentile of waits."""
    mb_per_s: float
    seen: tuple[SampleCounts, ...]
    """Of each whole epoch, from the first batch on."""


def measure_stall(name: str, reading: Reading, step_s: float, steps: int) -> Stall:
    """Of an arm, in the process that this is called in."""
    batches = arm(name).read(reading)
    found: list[bytes] = []
    for _ in range(_WARM_UP):
        found += [content[:ID_BYTES] for content in next(batches)]
    waits: list[float] = []
    total = 0
    begun_s = time.perf_counter()
    for _ in range(steps):
        asked_s = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - asked_s)
        total += sum(map(len, batch))
        found += [content[:ID_BYTES] for content in batch]
        time.sleep(step_s)
    seconds = time.perf_counter() - begun_s
    epoch = reading.samples.total
    while len(found) < epoch:
        found += [content[:ID_BYTES] for content in next(batches)]
    numbers = [number_of(content) for content in found]
    told = tuple(
        seen(numbers[at : at + epoch], reading.samples)
        for at in range(0, len(numbers) - epoch + 1, epoch)
    )
    slowest_s = sorted(waits)[int(0.99 * (len(waits) - 1))]
    return Stall(sum(waits) / seconds, 1000 * slowest_s, total / seconds / 1e6, told)


def compare(
    names: Sequence[str], reading: Reading, step_s: float, args: argparse.Namespace
) -> None:
    """Measure, print a table, write a record."""
    found: dict[str, list[Stall]] = {name: [] for name in names}

    def measure(name: str) -> float:
        workers = 0 if name == "hpckit" else args.workers
        one = in_fresh(
            measure_stall,
            *(name, replace(reading, workers=workers), step_s, args.steps),
            peers=args.peers,
        )
        found[name].append(one)
        return one.wait_share

    interleave({name: partial(measure, name) for name in names}, args.rounds)
    needs = reading.batch * reading.samples.size / step_s / 1e6
    title = f"{1000 * step_s:g} ms steps, {needs:,.0f} MB/s, load {os.getloadavg()[0]:.1f}"
    table = Table(title=title, box=None, title_justify="left")
    for column in ("arm", "waiting", "of 99 %", "MB/s", "of an epoch"):
        left = column in ("arm", "of an epoch")
        table.add_column(column, justify="left" if left else "right")
    for name, all_ in found.items():
        shares = [one.wait_share for one in all_]
        table.add_row(
            name,
            f"{median(shares):.1%} ({min(shares):.1%} to {max(shares):.1%})",
            f"{median(one.slowest_ms for one in all_):.1f} ms",
            f"{median(one.mb_per_s for one in all_):,.0f}",
            "; ".join(sorted({str(told) for one in all_ for told in one.seen})),
        )
    Console(width=120).print(table)
    write_record(
        f"data_stall_{1000 * step_s:g}ms",
        {
            "settings": {**vars(args), "peers": str(args.peers), "folder": str(args.folder)},
            "load": os.getloadavg(),
            "arms": {name: [asdict(one) for one in all_] for name, all_ in found.items()},
        },
    )


def _prepare(name: str, reading: Reading) -> None:
    arm(name).prepare(reading)
    for path in reading.tars.parent.rglob("*"):  # into the page cache
        if path.is_file():
            path.read_bytes()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[10.0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--kb", type=int, default=100)
    parser.add_argument("--mib", type=int, default=320, help="of the data set")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2, help="of peers")
    parser.add_argument("--only", action="append", help="an arm; may be repeated")
    parser.add_argument("--folder", type=Path, help="where to work")
    args = parser.parse_args()
    names = arms(partial(in_fresh, importable, peers=args.peers))
    names = [n for n in names if n not in LEFT_OUT and (not args.only or n in args.only)]
    each = max(1, (args.mib << 20) // (16 * args.kb * 1000))
    samples = Samples(16, each, args.kb * 1000)
    with scratch(args.folder) as folder:
        reading = Reading(
            folder / "tars", folder / "converted", samples, args.batch,
            prefetch=args.prefetch, threads=args.threads,
        )  # fmt: skip
        samples.write(reading.tars)
        for name in names:
            in_fresh(_prepare, name, reading, peers=args.peers)
        for step_ms in args.step_ms:
            compare(names, reading, step_ms / 1000, args)


if __name__ == "__main__":
    main()
