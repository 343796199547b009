"""Maintenance of a cache from outside of a run: list its shards, verify them, and prune them."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data.cache.cache_metrics import CacheMetrics
from data.cache.files import shard_quarantine, shard_record
from data.cache.files.cache_entry import CacheEntry
from data.cache.files.cache_folder import CacheFolder, hash_of
from data.cache.space import next_use_plans, space_reservation
from data.cache.space.space_reservation import CachedFile
from data.errors import DataError
from data.index.compressed import unpacked_files


@dataclass(frozen=True)
class CachedShardInfo:
    """A shard in a cache, as it is shown to users."""

    entry: CacheEntry
    url: str
    """The URL without secrets; "?" if the record of the shard is lost."""

    whole: bool
    used_s: float
    """The Unix time at which it was last opened."""

    next_use_s: float | None
    """Seconds from now until a live job uses it; None if none plans to."""


def listed(root: Path) -> list[CachedShardInfo]:
    """List all shards of the cache, most recently used first.

    Raises DataError if `root` is not a folder, OSError if it cannot be read.
    """
    folder = _folder(root)
    uses, now_s = next_use_plans.next_uses(folder.plans), time.monotonic()
    found = [_listed(folder, one, uses, now_s) for one in space_reservation.cached_files(folder)]
    return sorted(found, key=lambda one: -one.used_s)


def verified(root: Path) -> Iterator[tuple[CacheEntry, bool]]:
    """Yield each whole shard and whether its hash is still right. One whose hash is not is moved to
    quarantine.

    Raises DataError and OSError as `listed` does.
    """
    folder = _folder(root)
    for one in space_reservation.cached_files(folder):
        if one.kind == "shard":
            right = _verify(folder, one.entry)
            if right is not None:
                yield one.entry, right


def prune(root: Path, budget_bytes: int) -> int:
    """Remove shards and unpacked files in the order of eviction until the rest fit the budget.
    Those in use are kept.

    Returns the bytes freed. Raises DataError and OSError as `listed` does.
    """
    folder, metrics = _folder(root), CacheMetrics()
    with folder.ledger():
        everything = space_reservation.cached_files(folder)
        for path, _, _ in space_reservation.quarantined(folder):
            path.unlink(missing_ok=True)
        space_reservation.sweep(folder)
        shortage = _shortage(folder, everything, budget_bytes)
        if shortage > 0:
            space_reservation.evict(folder, everything, shortage, float("-inf"), metrics)
    return metrics.bytes_evicted


def prunable(root: Path, budget_bytes: int) -> int:
    """Return the bytes that `prune` would free now. Raises DataError and OSError as `listed`
    does."""
    folder = _folder(root)
    with folder.ledger():
        everything = space_reservation.cached_files(folder)
        shortage = _shortage(folder, everything, budget_bytes)
        found = space_reservation.victims(folder, everything, max(0, shortage), float("-inf"))
    return sum(one.bytes for one, _ in found or ())


def _shortage(folder: CacheFolder, everything: list[CachedFile], budget_bytes: int) -> int:
    """Return by how many bytes the cache exceeds the budget, at most the bytes that can be
    freed."""
    total = sum(one.entry.bytes for one in everything)
    total += unpacked_files.bytes_in(folder.root / unpacked_files.FOLDER)
    idle = [one for one in everything if space_reservation.idle(folder, one)]
    idle += space_reservation.unpacked(folder)
    return min(total - budget_bytes, sum(one.entry.bytes for one in idle))


def _folder(root: Path) -> CacheFolder:
    if not root.is_dir():
        raise DataError(f"no cache at {root}: the folder does not exist")
    return CacheFolder(root)


def _listed(
    folder: CacheFolder, one: CachedFile, uses: dict[str, float], now_s: float
) -> CachedShardInfo:
    found = shard_record.read(folder.path(one.entry, "json"))
    at_s = uses.get(one.entry.key)
    return CachedShardInfo(
        one.entry,
        "?" if found is None else found.url,
        one.kind == "shard",
        one.used_s,
        None if at_s is None else at_s - now_s,
    )


def _verify(folder: CacheFolder, entry: CacheEntry) -> bool | None:
    """Verify one shard; None if it was removed in the meantime."""
    found = shard_record.read(folder.path(entry, "json"))
    try:
        fd = os.open(folder.path(entry, "shard"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(fd, "rb", buffering=0):
        if found is not None and found.hash == hash_of(fd):
            return True
        return shard_quarantine.replace(folder, entry, fd)
