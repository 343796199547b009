"""What this process has open: leaks are counted by what they are of, as other threads of the
process open and close files of their own meanwhile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def links() -> Counter[str]:
    """How many descriptors there are of each path, `socket:[inode]`, …, as /proc names them."""
    found: Counter[str] = Counter()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found[str(fd.readlink())] += 1
        except FileNotFoundError:  # the one that reads the folder
            continue
    return found


def opened(folder: Path) -> int:
    """How many descriptors there are of files in this folder, also of those that are deleted."""
    return sum(count for link, count in links().items() if Path(link).is_relative_to(folder))
