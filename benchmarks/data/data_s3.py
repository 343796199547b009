"""A cold epoch of shards in a bucket: hpckit beside its peers, and beside a plain download.

    python -m benchmarks.data.data_s3 [--peers FOLDER] [--server ceph|ministack] [--rounds 5]
        [--kb 10 100] [--shards 16] [--mib 32] [--workers 0] [--only NAME]

A local S3 server has the shards. Every measurement is in a new process, which reads one epoch with
empty caches; imports are not counted, of no arm. Told are MB/s of sample contents, and processor
seconds per GB of the process that reads and of its children (curl, workers): the server runs on the
same cores, so elapsed time alone says little of other machines. Both are told as ratios to a plain
download of the same objects in the same round, of which no byte is looked at. What is missing or
came twice is told beside them, and the memory that the process took at most beyond what it had
before; requests are those that hpckit counts. Slow arms are measured only if named by `--only`.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median

import obstore
from rich.console import Console
from rich.table import Table

from benchmarks.common.arm_comparison import ArmComparison, interleave, write_record
from benchmarks.common.fresh_process import in_fresh
from benchmarks.common.scratch import scratch
from benchmarks.data.data_peers import importable
from benchmarks.data.data_sets import ID_BYTES, SampleCounts, Samples, number_of, seen
from benchmarks.data.readers.data_s3_arms import ARMS, PLAIN, BucketReading, arm
from tests.services.ceph import ceph
from tests.services.ministack import ministack
from tests.services.s3 import S3Place, S3Server

SERVERS: dict[str, Callable[[Path], AbstractContextManager[S3Server]]] = {
    "ceph": ceph,
    "ministack": ministack,
}


@dataclass(frozen=True)
class EpochCost:
    """One measurement."""

    seconds: float
    cpu_s: float
    """Of the process and its children."""
    first_s: float
    """Until the first batch."""
    memory_mb: float
    mb_per_s: float
    requests: int | None
    seen: SampleCounts | None
    """None where samples are not looked at."""


def read_epoch(name: str, reading: BucketReading) -> EpochCost:
    """An epoch of an arm, in the process that this is called in."""
    one = arm(name)
    for module in one.modules:
        import_module(module)
    for _ in range(one.epochs_before):
        _read(one.name, reading)
    return _read(one.name, reading)


def _read(name: str, reading: BucketReading) -> EpochCost:
    size, found, damaged, first_s = reading.samples.size, [], 0, 0.0
    before_mb, before_s = _reset_peak_mb(), _cpu_s()
    began_s = time.perf_counter()
    epoch = arm(name).begin(reading)
    for batch in epoch.batches:
        first_s = first_s or time.perf_counter() - began_s
        found += [content[:ID_BYTES] for content in batch]
        damaged += sum(len(content) != size for content in batch)
    epoch.close()
    seconds = time.perf_counter() - began_s
    counts = None if name == PLAIN else seen(map(number_of, found), reading.samples, damaged)
    return EpochCost(
        seconds,
        _cpu_s() - before_s,
        first_s,
        _status_mb("VmHWM") - before_mb,
        reading.samples.total * size / seconds / 1e6,
        epoch.requests(),
        counts,
    )


def _cpu_s() -> float:
    """Processor seconds of this process and of its children that have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))


def _reset_peak_mb() -> float:
    """Begin the peak of this process's memory anew; returns what it has now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_mb("VmRSS")


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(found) * 1024 / 1e6


def compare(
    names: Sequence[str], reading: BucketReading, rounds: int, peers: Path | None, label: str
) -> None:
    """Measure, print a table, write a record."""
    found: dict[str, list[EpochCost]] = {name: [] for name in names}

    def measure(name: str) -> float:
        with tempfile.TemporaryDirectory(dir=reading.cache, ignore_cleanup_errors=True) as cache:
            each = BucketReading(**{**vars(reading), "cache": Path(cache)})
            found[name].append(in_fresh(read_epoch, name, each, peers=peers))
        return found[name][-1].mb_per_s

    interleave({name: partial(measure, name) for name in names}, rounds)
    _print(found, reading)
    write_record(
        f"data_s3_{label}",
        {
            "samples": asdict(reading.samples),
            "batch": reading.batch,
            "workers": reading.workers,
            "load": os.getloadavg(),
            "arms": {name: [asdict(one) for one in all_] for name, all_ in found.items()},
        },
    )


def _print(found: dict[str, list[EpochCost]], reading: BucketReading) -> None:
    samples = reading.samples
    mib = samples.each * samples.size / 2**20
    table = Table(
        title=f"{samples.shards} shards of {mib:.0f} MiB, samples of {samples.size // 1000} KB,"
        f" load {os.getloadavg()[0]:.1f}",
        box=None,
        title_justify="left",
    )
    texts = ("arm", "samples of the epoch")
    for name in (
        *("arm", "MB/s", "of plain", "CPU s / GB", "of plain", "first batch", "memory"),
        *("requests", "samples of the epoch"),
    ):
        table.add_column(name, justify="left" if name in texts else "right")
    gb = samples.total * samples.size / 1e9
    cpu = {name: [one.cpu_s / gb for one in all_] for name, all_ in found.items()}
    speed = {name: [one.mb_per_s for one in all_] for name, all_ in found.items()}
    by_cpu = ArmComparison("cpu", PLAIN, "CPU s / GB", cpu)
    by_speed = ArmComparison("speed", PLAIN, "MB/s", speed)
    for name, all_ in found.items():
        counts = {str(one.seen) for one in all_ if one.seen is not None}
        requests = {one.requests for one in all_ if one.requests is not None}
        ratios = [str(each.ratio(name)) if name != PLAIN else "" for each in (by_speed, by_cpu)]
        table.add_row(
            name,
            f"{by_speed.spread(name).median:,.0f}",
            ratios[0],
            f"{by_cpu.spread(name).median:.2f}",
            ratios[1],
            f"{1000 * median(one.first_s for one in all_):,.0f} ms" if counts else "",
            f"{median(one.memory_mb for one in all_):,.0f} MB",
            f"{max(requests):,}" if requests else "",
            "; ".join(sorted(counts)),
        )
    Console(width=160).print(table)


def upload(samples: Samples, place: S3Place, folder: Path) -> None:
    """Write the shards and their index, and put them into the place."""
    samples.write(folder)
    store = place.store(timeout_s=600)
    for path in sorted(folder.iterdir()):
        obstore.put(store, path.name, path)
        path.unlink()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--server", choices=sorted(SERVERS), default="ceph")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kb", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--mib", type=int, default=32, help="of one shard")
    parser.add_argument("--workers", type=int, default=0, help="of each peer")
    parser.add_argument("--only", action="append", help="an arm; may be repeated")
    parser.add_argument("--folder", type=Path, help="where to work")
    args = parser.parse_args()
    names = []
    for one in ARMS:
        if one.name not in (PLAIN, *args.only) if args.only else one.is_slow:
            continue
        lacks = [in_fresh(importable, module, peers=args.peers) for module in one.modules]
        if any(lacks):
            print(
                f"left out: {one.name} ({next(filter(None, lacks))}); see readers/data_s3_arms.py"
            )
        else:
            names.append(one.name)
    with scratch(args.folder) as folder, SERVERS[args.server](folder) as server:
        for kb in args.kb:
            samples = Samples(args.shards, max(1, (args.mib << 20) // (kb * 1000)), kb * 1000)
            place = server.new_place()
            upload(samples, place, folder / f"{kb}")
            reading = BucketReading(place, samples, folder, workers=args.workers)
            compare(names, reading, args.rounds, args.peers, f"{kb}kb")


if __name__ == "__main__":
    main()
