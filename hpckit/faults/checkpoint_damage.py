"""A bit of a checkpoint that is not what was written: by a disk, or by whoever wrote over it."""

from __future__ import annotations

import random
from pathlib import Path

from hpckit.faults.injection.shard_corruption import flip

NEWEST = 3
"""Objects of which one is chosen."""
PACKS, MANIFESTS = "packs/*/*.pack", "runs/*/steps/*.manifest"
"""Kinds of objects: those with tensors, and what makes of them a checkpoint."""


def newest(store: Path, kind: str, number: int) -> Path | None:
    """The `number`-th, going round, of the newest objects of a kind in the store at this folder;
    None: there is none."""
    found = []
    for path in store.glob(kind):
        try:
            found.append((path.stat().st_mtime_ns, path))
        except FileNotFoundError:  # pruned meanwhile
            continue
    last = sorted(found)[-NEWEST:]
    return last[number % len(last)][1] if last else None


def flip_bit(path: Path) -> None:
    """One bit of it, anywhere; the same for the same name, which is random.

    Raises:
        OSError: it is not there, or cannot be changed.
    """
    with path.open("r+b") as file:
        flip(file, random.Random(path.name).randrange(file.seek(0, 2)))
