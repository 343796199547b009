"""Data sets whose samples say who they are, so that what a loader gave can be counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.index.manifest import NAME
from data.write.shard_writer import ShardWriter

EXTENSION = "bin"
ID_BYTES = 8


@dataclass(frozen=True)
class Samples:
    """`shards` of `each` samples of `size` bytes, incompressible; sample i begins with i."""

    shards: int
    each: int
    size: int

    @property
    def total(self) -> int:
        return self.shards * self.each

    def content(self, number: int) -> bytes:
        """Of one sample."""
        block = np.random.default_rng(number % 64).bytes(self.size - ID_BYTES)
        return number.to_bytes(ID_BYTES, "little") + block

    def write(self, folder: Path) -> None:
        """As tars, with their index, unless they are there."""
        if (folder / NAME).exists():
            return
        with ShardWriter(folder / "shard-%06d.tar", max_samples=self.each) as writer:
            for number in range(self.total):
                writer.write({"__key__": f"{number:09d}", EXTENSION: self.content(number)})


@dataclass(frozen=True)
class SampleCounts:
    """How often the samples of an epoch came."""

    missing: int
    twice: int
    damaged: int
    """Of another length than they should have."""

    def __str__(self) -> str:
        damaged = f", {self.damaged:,} damaged" if self.damaged else ""
        return f"{self.missing:,} missing, {self.twice:,} twice{damaged}"


def number_of(content: bytes) -> int:
    """The number of the sample with this content."""
    return int.from_bytes(content[:ID_BYTES], "little")


def seen(numbers: Iterable[int], samples: Samples, damaged: int = 0) -> SampleCounts:
    """What is missing and what came twice, of one epoch."""
    times = Counter(numbers)
    missing = sum(number not in times for number in range(samples.total))
    return SampleCounts(missing, sum(times.values()) - len(times), damaged)
