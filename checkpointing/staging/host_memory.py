"""Determines how much host memory is free on this node, and refuses allocations that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from checkpointing.errors import StageError


@dataclass(frozen=True)
class FreeMemory:
    """Bytes of memory that are free, and what limits them."""

    bytes: int
    bound: str  # "cgroup limit 64.0 GiB", "the machine has 125.0 GiB"


def need(slot_bytes: int, slots: int, ranks: int = 1) -> int:
    """Returns the bytes that the slots of all ranks of a node take, if each rank's slot has
    `slot_bytes`."""
    return slot_bytes * slots * ranks


def require(
    slot_bytes: int,
    slots: int,
    ranks: int = 1,
    free: FreeMemory | None = None,
    *,
    is_bucketed: bool = False,
) -> None:
    """Raise if the slots do not fit on this node; nothing is allocated.

    Ranks that share a node must check together, with the largest slot among them, before any of
    them allocates memory, because what one has taken is no longer free in the check of the next.

    Args:
        slot_bytes: bytes of a slot of one rank.
        slots: number of slots per rank.
        ranks: number of ranks on this node.
        free: the free memory; None: determine it now.
        is_bucketed: whether `slot_bytes` is the memory of all buckets.

    Raises:
        StageError: they do not fit; the message says what would.
    """
    free = available() if free is None else free
    if need(slot_bytes, slots, ranks) > free.bytes:
        refusal = _bucket_refusal if is_bucketed else _refusal
        raise StageError(refusal(slot_bytes, slots, ranks, free))


def available(root: Path = Path("/")) -> FreeMemory:
    """Returns the free memory: of the machine or under the limit of a cgroup, whichever is less.

    A cgroup's unused file cache counts as free, because the kernel reclaims it before it kills a
    process.

    Args:
        root: folder that contains /proc and /sys.

    Raises:
        StageError: the kernel does not say how much memory is free.
    """
    return min([_machine(root), *_cgroups(root)], key=lambda free: free.bytes)


def gib(size: int) -> str:
    """Formats a size: "12.4 GiB", or "3.2 MiB" below a tenth of a GiB."""
    if size < (1 << 30) // 10:
        return f"{size / (1 << 20):.1f} MiB"
    return f"{size / (1 << 30):.1f} GiB"


def _refusal(slot_bytes: int, slots: int, ranks: int, free: FreeMemory) -> str:
    of_ranks = f" of {ranks} ranks" if ranks > 1 else ""
    plural = "s" if slots > 1 else ""
    fits = slots > 1 and need(slot_bytes, 1, ranks) <= free.bytes
    remedy = "slots=1, or staging='buckets'" if fits else "staging='buckets'"
    return (
        f"staging needs {slots} × {gib(slot_bytes * ranks)} of host memory on this node ({slots} "
        f"slot{plural}{of_ranks}), but only {gib(free.bytes)} are free ({free.bound}): use {remedy}"
    )


def _bucket_refusal(slot_bytes: int, slots: int, ranks: int, free: FreeMemory) -> str:
    return (
        f"staging needs {gib(need(slot_bytes, slots, ranks))} of host memory on this node (buckets "
        f"of {ranks} rank{'s' if ranks > 1 else ''}), {gib(free.bytes)} are free ({free.bound}): "
        "have fewer ranks on a node, or more memory for the job"
    )


def _machine(root: Path) -> FreeMemory:
    path = root / "proc/meminfo"
    fields = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
    try:
        total, left = (int(fields[key].split()[0]) << 10 for key in ("MemTotal", "MemAvailable"))
    except (KeyError, ValueError, IndexError) as error:
        raise StageError(f"{path} does not say how much memory is free ({error!r})") from error
    return FreeMemory(left, f"the machine has {gib(total)}")


@dataclass(frozen=True)
class _Files:
    """The file names that a version of cgroups uses."""

    limits: tuple[str, ...]
    usage: str
    cache: str  # key in memory.stat


_V1 = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files(("memory.max", "memory.high"), "memory.current", "inactive_file")


def _cgroups(root: Path) -> Iterator[FreeMemory]:
    """Yields the free memory of this process's cgroup and of all above it that are visible."""
    for mount, inner, path, files in _hierarchies(root):
        below = PurePosixPath(path)
        # in a container the mount shows only a part of the tree, and the path may be that of the
        # host
        relative = below.relative_to(inner) if below.is_relative_to(inner) else PurePosixPath(".")
        folder = root / mount.lstrip("/") / relative.as_posix().lstrip("/")
        while True:
            yield from _cgroup(folder, files)
            if folder == root / mount.lstrip("/"):
                break
            folder = folder.parent


def _hierarchies(root: Path) -> Iterator[tuple[str, str, str, _Files]]:
    """Yields, for each hierarchy: mount point, the part of the hierarchy that is mounted there,
    this process's path in it, and its file names."""
    paths = {}
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    for line in _lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        inner, mount = left.split()[3:5]
        kind, _, options = (right.split() + [""] * 3)[:3]
        if kind == "cgroup2" and "" in paths:
            yield mount, inner, paths[""], _V2
        elif kind == "cgroup" and "memory" in options.split(",") and "memory" in paths:
            yield mount, inner, paths["memory"], _V1


def _lines(path: Path) -> list[str]:
    """Returns the lines of a file; none if the kernel has no cgroups."""
    return path.read_text().splitlines() if path.exists() else []


def _cgroup(folder: Path, files: _Files) -> Iterator[FreeMemory]:
    usage = _number(folder / files.usage)
    if usage is None:
        return
    stat = dict(line.split()[:2] for line in _lines(folder / "memory.stat"))
    used = max(0, usage - int(stat.get(files.cache, 0)))
    for name in files.limits:
        if (limit := _number(folder / name)) is not None:
            yield FreeMemory(max(0, limit - used), f"cgroup limit {gib(limit)}")


def _number(path: Path) -> int | None:
    """Returns the number in a file; None if there is no such file (the root of a hierarchy), or no
    limit ("max")."""
    text = path.read_text().strip() if path.exists() else "max"
    return None if text == "max" else int(text)
