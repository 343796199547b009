"""Freeing space in a cache: its content, what may be evicted, and reserving the freed space."""

import ctypes
import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from data.cache.cache_metrics import CacheMetrics
from data.cache.files.cache_entry import DROPPED, GROWING, CacheEntry
from data.cache.files.cache_folder import CacheFolder
from data.cache.files.file_locks import FileLock, in_use
from data.cache.space import next_use_plans
from data.cache.space.eviction_choice import EvictionCandidate, choose_victims
from data.index.compressed import unpacked_files

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LEFTOVER_S = 3600.0  # age at which small files that belong to no shard are removed
_QUARANTINED = 4  # damaged shards that are kept for inspection
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of linux/falloc.h
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True)
class CacheBudget:
    """The size limits of a cache."""

    bytes: int
    free_reserve: int
    """Bytes of the disk that are left free."""


@dataclass(frozen=True)
class CachedFile:
    """A shard, a part, or an unpacked file in the cache."""

    entry: CacheEntry
    """Of an unpacked file, its name and bytes alone."""
    kind: str
    """"shard", "part", or "unpacked"."""
    used_s: float
    """The Unix time at which it was last opened."""


def cached_files(folder: CacheFolder) -> list[CachedFile]:
    """List all shards and parts, each stem once. Raises OSError.

    A part that becomes a shard while the folder is read may be listed under both names or neither;
    its other files are listed in any case, so each stem is looked up by its names.
    """
    with os.scandir(folder.root) as files:
        parsed = (CacheEntry.parse(file.name) for file in files)
        met = {one[0].stem: one[0] for one in parsed if one is not None}
    found = (_held(folder, entry) for entry in met.values())
    return [one for one in found if one is not None]


def unpacked(folder: CacheFolder) -> list[CachedFile]:
    """List the unpacked files that no process uses. Raises OSError."""
    return [
        CachedFile(CacheEntry("", "", one.bytes, one.name), "unpacked", one.used_s)
        for one in unpacked_files.unused(folder.root / unpacked_files.FOLDER)
    ]


def free(root: Path, shortage: int) -> bool:
    """Remove shards and unpacked files that no process uses, of so many bytes; returns whether
    there were enough. Raises OSError, TimeoutError."""
    folder, metrics = CacheFolder(root), CacheMetrics()
    with folder.ledger():
        return evict(folder, cached_files(folder), shortage, time.monotonic(), metrics)


def _held(folder: CacheFolder, entry: CacheEntry) -> CachedFile | None:
    # a second look: the part may have become the shard just now
    for kind in ("shard", "part", "shard"):
        try:
            return CachedFile(entry, kind, folder.path(entry, kind).lstat().st_mtime)
        except FileNotFoundError:
            continue
    return None


def quarantined(folder: CacheFolder) -> list[tuple[Path, int, float]]:
    """List (path, bytes, Unix time) of the files in quarantine, oldest first. Raises OSError."""
    try:
        files = [(p, p.lstat()) for p in folder.quarantine.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(((p, s.st_size, s.st_mtime) for p, s in files), key=lambda one: one[2])


def allocate(
    folder: CacheFolder,
    budget: CacheBudget,
    entry: CacheEntry,
    when_s: float,
    metrics: CacheMetrics,
) -> int | None:
    """Open the part of `entry` for writing, with all of its space reserved.

    An existing part is resumed. None if there is no room: other shards are needed before `when_s`,
    are open, or the disk is full. The lock of `entry` must be held. Raises OSError.
    """
    with folder.ledger():
        if not make_room(folder, budget, entry, when_s, metrics):
            return None
        path = folder.path(entry, "part")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, GROWING)
        try:
            os.fchmod(fd, GROWING)  # whatever the umask
            _reserve(fd, folder, budget, entry, when_s, metrics)
        except OSError as error:
            os.close(fd)
            folder.discard_part(entry, DROPPED)
            if error.errno in _FULL:
                return None
            raise
        return fd


def make_room(
    folder: CacheFolder,
    budget: CacheBudget,
    entry: CacheEntry,
    when_s: float,
    metrics: CacheMetrics,
    more: int = 0,
) -> bool:
    """Evict shards as needed for `entry`; returns whether it fits. The ledger must be held.

    At least `more` bytes are freed, however much space there seems to be.
    """
    everything = cached_files(folder)
    others = [one for one in everything if one.entry.stem != entry.stem]
    total = sum(one.entry.bytes for one in others)
    total += unpacked_files.bytes_in(folder.root / unpacked_files.FOLDER)
    kept = _trim_quarantine(folder, _QUARANTINED)
    missing = entry.bytes - _reserved(folder.path(entry, "part"))
    shortage = max(
        total + kept + entry.bytes - budget.bytes,
        missing + budget.free_reserve - _free(folder.root),
        more,
    )
    if shortage > 0 and kept:
        shortage -= kept - _trim_quarantine(folder, 0)
    if shortage <= 0:
        return True
    return evict(folder, others, shortage, when_s, metrics, entry.key)


def evict(
    folder: CacheFolder,
    everything: list[CachedFile],
    shortage: int,
    when_s: float,
    metrics: CacheMetrics,
    replaced: str = "",
) -> bool:
    """Evict shards that free `shortage` bytes, or none. The ledger must be held.

    Args:
        replaced: URL key of the shard that is fetched, whose older versions count as being in no
            plan.
    """
    found = victims(folder, everything, shortage, when_s, replaced)
    if found is None:
        return False
    for candidate, one in found:
        if _remove(folder, one):
            metrics.add(evictions=1, bytes_evicted=candidate.bytes)
    return True


def victims(
    folder: CacheFolder,
    everything: list[CachedFile],
    shortage: int,
    when_s: float,
    replaced: str = "",
) -> list[tuple[EvictionCandidate, CachedFile]] | None:
    """Return what `evict` would remove; None if it cannot free enough."""
    uses = next_use_plans.next_uses(folder.plans)
    planned_s = uses.pop(replaced, when_s)
    if when_s > time.monotonic():  # fetched ahead: a newer plan tells later times of all shards
        when_s = max(when_s, planned_s)
    unused = {one.entry.stem: one for one in everything if idle(folder, one)}
    unused |= {one.entry.stem: one for one in unpacked(folder)}
    candidates = [
        EvictionCandidate(stem, one.entry.bytes, uses.get(one.entry.key), one.used_s)
        for stem, one in unused.items()
    ]
    chosen = choose_victims(candidates, shortage, when_s)
    return None if chosen is None else [(one, unused[one.stem]) for one in chosen]


def sweep(folder: CacheFolder) -> None:
    """Remove old small files whose shards are gone. Raises OSError."""
    stems = {one.entry.stem for one in cached_files(folder)}
    before_s = time.time() - _LEFTOVER_S
    with os.scandir(folder.root) as files:
        for file in files:
            parsed = CacheEntry.parse(file.name)
            gone = parsed is not None and parsed[1] != "lock" and parsed[0].stem not in stems
            if gone or file.name.endswith(".tmp"):
                path = Path(file.path)
                if path.lstat().st_mtime < before_s:
                    path.unlink(missing_ok=True)


def _reserve(
    fd: int,
    folder: CacheFolder,
    budget: CacheBudget,
    entry: CacheEntry,
    when_s: float,
    metrics: CacheMetrics,
) -> None:
    try:
        reserve(fd, entry.bytes)
    except OSError as error:
        more = entry.bytes - os.fstat(fd).st_blocks * 512
        full = error.errno in _FULL
        if not full or not make_room(folder, budget, entry, when_s, metrics, max(more, 1)):
            raise
        reserve(fd, entry.bytes)


def reserve(fd: int, size: int) -> bool:
    """Reserve the first `size` bytes of an open file, so that a full disk fails now and not later.

    Returns False where the file system cannot do that. Raises OSError, such as ENOSPC.
    """
    if size == 0:
        return True
    while _libc.fallocate(fd, _KEEP_SIZE, 0, size) != 0:
        number = ctypes.get_errno()
        if number in _UNSUPPORTED:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True


def idle(folder: CacheFolder, one: CachedFile) -> bool:
    """Return whether no process reads the shard or downloads the part."""
    if one.kind == "part":
        with _part_lock(folder, one.entry) as got:
            return got
    try:
        fd = os.open(folder.path(one.entry, "shard"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    with open(fd, "rb", buffering=0), in_use(fd) as used:
        return not used


def _remove(folder: CacheFolder, one: CachedFile) -> bool:
    if one.kind == "shard":
        folder.remove(one.entry)
        return True
    if one.kind == "unpacked":
        return unpacked_files.remove(folder.root / unpacked_files.FOLDER, one.entry.name)
    with _part_lock(folder, one.entry) as got:
        if got:
            folder.discard_part(one.entry, DROPPED)
            folder.remove(one.entry)
        return got


@contextmanager
def _part_lock(folder: CacheFolder, entry: CacheEntry) -> Iterator[bool]:
    lock = FileLock.try_acquire(folder.path(entry, "lock"))
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def _trim_quarantine(folder: CacheFolder, keep: int) -> int:
    """Remove all but the newest `keep` files in quarantine; returns the bytes of those kept."""
    files = quarantined(folder)
    first = max(0, len(files) - keep)
    for path, _, _ in files[:first]:
        path.unlink(missing_ok=True)
    return sum(size for _, size, _ in files[first:])


def _reserved(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _free(root: Path) -> int:
    status = os.statvfs(root)
    return status.f_bavail * status.f_frsize
