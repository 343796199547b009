"""A bit of a checkpoint that is not what was written: by a disk, or by whoever wrote over it."""

from __future__ import annotations

from pathlib import Path

NEWEST = 3
"""Objects of which one is chosen."""
_NAMES = 1 << 128


def newest_pack(store: Path, number: int) -> Path | None:
    """The `number`-th, going round, of the newest objects with tensors in the store at this folder;
    None: there is none."""
    found = []
    for path in store.glob("packs/*/*.pack"):
        try:
            found.append((path.stat().st_mtime_ns, path))
        except FileNotFoundError:  # pruned meanwhile
            continue
    newest = sorted(found)[-NEWEST:]
    return newest[number % len(newest)][1] if newest else None


def flip_bit(pack: Path) -> None:
    """One bit of it, anywhere; the same for the same name, which is random.

    Raises:
        OSError: it is not there, or cannot be changed.
    """
    with pack.open("r+b") as file:
        at = int(pack.stem, 16) * file.seek(0, 2) // _NAMES
        file.seek(at)
        (old,) = file.read(1)
        file.seek(at)
        file.write(bytes([old ^ 1]))
