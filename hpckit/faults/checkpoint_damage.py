"""Damages a checkpoint by a flipped bit, as a disk or a foreign write may."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

from hpckit.faults.injection.shard_corruption import flip

NEWEST = 3
"""Number of newest objects of which one is chosen."""
PACKS, MANIFESTS = "packs/*/*.pack", "runs/*/steps/*.manifest"
"""Patterns of objects: packs, which hold tensors, and manifests."""


def newest(store: Path, kind: str, number: int) -> Path | None:
    """Return the `number`-th, modulo their count, of the newest objects of a kind in the store at
    this folder; None: there is none."""
    found = []
    for path in store.glob(kind):
        try:
            found.append((path.stat().st_mtime_ns, path))
        except FileNotFoundError:  # pruned meanwhile
            continue
    last = sorted(found)[-NEWEST:]
    return last[number % len(last)][1] if last else None


def written_since(store: Path, time_s: float) -> int:
    """Return how many manifests in the store at this folder were written after a time, in seconds
    since the epoch."""
    times = []
    for path in store.glob(MANIFESTS):
        with suppress(FileNotFoundError):  # pruned meanwhile
            times.append(path.stat().st_mtime)
    return sum(time > time_s for time in times)


def flip_bit(path: Path) -> None:
    """Flip one bit of the object; the name, which is random, determines which.

    Raises:
        OSError: it does not exist, or cannot be changed.
    """
    with path.open("r+b") as file:
        flip(file, random.Random(path.name).randrange(file.seek(0, 2)))
