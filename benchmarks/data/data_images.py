"""Images per second where decoding is the limit: hpckit's threads and processes beside torch's
loader, torchdata and webdataset, by the same decoder.

    python -m benchmarks.data.data_images [--decoder pillow] [--workers 2] [--peers FOLDER]

JPEGs of 500 x 375 pixels are decoded, a part is cut out at random (the same one in every arm) and
scaled to 224 x 224. Every measurement is in a new process: an epoch after a first one, which starts
workers and opens files. Processor time is that of the process and of its workers. In both epochs
is counted which images are missing, came twice, or have other pixels than those that the decoder
alone gives. `--decoder` takes simplejpeg and torchvision where they can be imported.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.common.arm_comparison import interleave, write_record
from benchmarks.common.fresh_process import in_fresh
from benchmarks.common.machine import tree_cpu_s
from benchmarks.common.scratch import scratch
from benchmarks.data.data_peers import importable
from benchmarks.data.data_sets import SampleCounts
from benchmarks.data.readers.image_arms import DECODERS, IMAGE_ARMS, Crops, ImageReading

ALONE = IMAGE_ARMS[0].name


@dataclass(frozen=True)
class ImageEpoch:
    """One measurement."""

    seconds: float
    cpu_s: float
    """Of the process and its workers."""
    images: int
    seen: tuple[str, ...]
    """What is wrong, in each of both epochs."""


def read_images(name: str, reading: ImageReading, right: dict[int, int]) -> ImageEpoch:
    """Measures an epoch of an arm, in the process that this is called in.

    Args:
        right: a number of the pixels of each image.
    """
    batches = next(arm for arm in IMAGE_ARMS if arm.name == name).read(reading)
    found: list[tuple[int, int]] = []
    while len(found) < reading.images:
        found += digests(next(batches))
    before, begun_s, begun_cpu_s = len(found), time.perf_counter(), tree_cpu_s()
    while len(found) < 2 * reading.images:
        found += digests(next(batches))
    seconds, cpu_s = time.perf_counter() - begun_s, tree_cpu_s() - begun_cpu_s
    halves = found[: reading.images], found[reading.images : 2 * reading.images]
    told = tuple(judged(half, reading.images, right) for half in halves)
    return ImageEpoch(seconds, cpu_s, len(found) - before, told)


def digests(batch: Crops) -> list[tuple[int, int]]:
    """Returns (number, a number of the pixels) of each image of a batch."""
    pixels, numbers = batch
    sums = pixels[:, ::7, ::7].reshape(len(numbers), -1).sum(1).tolist()
    return list(zip(numbers, sums, strict=True))


def judged(found: Sequence[tuple[int, int]], images: int, right: dict[int, int]) -> str:
    """Returns what is missing, came twice or is wrong in an epoch."""
    numbers = [number for number, _ in found]
    wrong = sum(pixels != right.get(number, pixels) for number, pixels in found)
    missing = images - len(set(numbers))
    return str(SampleCounts(missing, len(numbers) - len(set(numbers)), wrong))


def right_digests(reading: ImageReading) -> dict[int, int]:
    """Returns `digests` of all images, by the decoder alone."""
    batches, found = IMAGE_ARMS[0].read(reading), dict[int, int]()
    while len(found) < reading.images:
        found.update(digests(next(batches)))
    return found


def compare(reading: ImageReading, rounds: int, peers: Path | None) -> None:
    """Measures, prints a table, writes a record."""
    right = in_fresh(right_digests, reading, peers=peers)
    names = []
    for arm in IMAGE_ARMS:
        why = None if arm.module is None else in_fresh(importable, arm.module, peers=peers)
        if why is None:
            names.append(arm.name)
        else:
            print(f"left out: {arm.name} ({why})")
    found: dict[str, list[ImageEpoch]] = {name: [] for name in names}

    def measure(name: str) -> float:
        found[name].append(in_fresh(read_images, name, reading, right, peers=peers))
        return found[name][-1].cpu_s

    interleave({name: partial(measure, name) for name in names}, rounds)
    _print(found, reading)
    write_record(
        f"data_images_{reading.decoder}",
        {
            "images": reading.images,
            "workers": reading.workers,
            "batch": reading.batch,
            "load": os.getloadavg(),
            "arms": {name: [asdict(one) for one in all_] for name, all_ in found.items()},
        },
    )


def _print(found: dict[str, list[ImageEpoch]], reading: ImageReading) -> None:
    table = Table(
        title=f"{reading.images} JPEGs by {reading.decoder}, {reading.workers} threads or "
        f"processes, load {os.getloadavg()[0]:.1f}",
        box=None,
        title_justify="left",
    )
    for column in ("arm", "images/s", "CPU ms / image", f"/ {ALONE}", "of an epoch"):
        left = column in ("arm", "of an epoch")
        table.add_column(column, justify="left" if left else "right")
    for name, epochs in found.items():
        pairs = zip(epochs, found[ALONE], strict=True)
        ratios = [(one.cpu_s / one.images) / (base.cpu_s / base.images) for one, base in pairs]
        table.add_row(
            name,
            f"{median(one.images / one.seconds for one in epochs):,.0f}",
            f"{1000 * median(one.cpu_s / one.images for one in epochs):.2f}",
            f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            "; ".join(sorted({told for one in epochs for told in one.seen})),
        )
    Console(width=120).print(table)


def main() -> None:
    """Writes the shards and measures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--decoder", choices=sorted(DECODERS), default="pillow")
    parser.add_argument("--workers", type=int, default=2, help="threads or processes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--folder", type=Path, help="where to work")
    args = parser.parse_args()
    with scratch(args.folder) as folder:
        each = max(1, args.images // 8)
        reading = ImageReading(
            folder / "shards", each * 8, each, args.decoder, args.batch, args.workers
        )
        reading.write()
        compare(reading, args.rounds, args.peers)


if __name__ == "__main__":
    main()
