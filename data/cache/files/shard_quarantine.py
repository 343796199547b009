"""Quarantines damaged shards: they are kept for inspection and fetched again; if they are
still damaged, that is an error."""

import logging
import os
import time

from data.cache.files.cache_entry import CacheEntry
from data.cache.files.cache_folder import CacheFolder, hash_of
from data.errors import DamagedShardError

_log = logging.getLogger(__name__)

AGAIN_S = 3600.0
"""Seconds: a shard found damaged twice within this time is taken to be damaged at its source."""


def move_to_quarantine(folder: CacheFolder, entry: CacheEntry, kind: str) -> None:
    """Move the shard or part to quarantine. Raises OSError."""
    folder.quarantine.mkdir(mode=0o700, exist_ok=True)
    path = folder.path(entry, kind)
    path.rename(folder.quarantine / f"{entry.stem}.{os.urandom(4).hex()}")


def report(
    folder: CacheFolder,
    entry: CacheEntry,
    fd: int,
    url: str,
    hash: str | None,
    reason: str,
) -> None:
    """Report that the whole shard that is open at `fd` is damaged, so that the next download
    replaces it.

    Raises DamagedShardError if fetching again would not help, because the shard has the hash that
    it should have or was fetched again a short time ago. Raises OSError.
    """
    if hash is not None and hash_of(fd) == hash:
        raise DamagedShardError(
            url,
            f"{reason}; but it has the hash of its manifest: it was damaged when it was written",
        )
    marker = folder.path(entry, "damaged")
    again = _age_s(marker) < AGAIN_S
    if replace(folder, entry, fd) is None:
        return  # another reader reported it, and it has been replaced
    marker.touch(mode=0o600)
    _log.warning("shard %s was damaged in the cache (%s) and was moved to quarantine", url, reason)
    if again:
        raise DamagedShardError(url, f"{reason}; fetching it again did not help")


def replace(folder: CacheFolder, entry: CacheEntry, fd: int) -> bool | None:
    """Move the shard that is open at `fd` to quarantine and return False; None if the file at its
    path is another one by now."""
    with folder.ledger():
        if not _is_open_file(folder.path(entry, "shard"), fd):
            return None
        move_to_quarantine(folder, entry, "shard")
        folder.path(entry, "json").unlink(missing_ok=True)
        return False


def _is_open_file(path: "os.PathLike[str]", fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))  # noqa: PTH116
    except FileNotFoundError:
        return False


def _age_s(marker: "os.PathLike[str]") -> float:
    try:
        return time.time() - os.stat(marker).st_mtime  # noqa: PTH116
    except FileNotFoundError:
        return float("inf")
