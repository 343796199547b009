"""The files of a cache and the operations on them. They raise OSError if the disk fails."""

import json
import logging
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from data.cache.files import shard_record
from data.cache.files.cache_entry import DROPPED, GROWING, WHOLE, CacheEntry
from data.cache.files.file_handle import FileHandle
from data.cache.files.file_locks import FileLock, mark_used
from data.cache.files.filesystem_type import SHARED, kind_of
from data.cache.files.shard_record import CachedShardRecord
from data.errors import DataError

_log = logging.getLogger(__name__)

_PIECE = 4 << 20  # bytes hashed at a time
_FAILED_S = 3600.0  # how long a .failed file is kept


class DownloadFailure(NamedTuple):
    """Why a download failed."""

    problem: str
    attempts: tuple[str, ...]
    damaged: bool
    """Whether the object was fetched but had wrong content."""


class CacheFolder:
    """The cache folder `root`. It has no state but its files, so processes may come and go.

    Args:
        lock_timeout_s: how long to wait for locks that other processes hold briefly.
    """

    def __init__(self, root: Path, lock_timeout_s: float = 30.0) -> None:
        self.root, self._lock_timeout_s = root, lock_timeout_s
        self.plans = root / "plans"
        self.quarantine = root / "quarantine"

    def make(self, allow_shared: bool) -> None:
        """Create the folder, for this user alone.

        Raises DataError if it is another user's, no folder, or on a file system that other machines
        share, unless that is allowed.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.root.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise DataError(
                f"cache {self.root}: it is not a folder that this user owns; choose another folder"
            )
        if status.st_mode & 0o022:
            raise DataError(
                f"cache {self.root}: other users can write to it and may have changed its files; "
                "remove it, or choose another folder"
            )
        if status.st_mode & 0o077:
            self.root.chmod(0o700)
        kind = kind_of(self.root)
        if kind in SHARED and not allow_shared:
            raise DataError(
                f"cache {self.root} is on a file system of kind {kind}, which machines share; "
                "choose a folder on a local disk, or allow_shared=True if there is none"
            )
        if kind in SHARED:
            _log.warning("cache %s is on %s, which is slower than a local disk", self.root, kind)

    def path(self, entry: CacheEntry, kind: str) -> Path:
        return self.root / f"{entry.stem}.{kind}"

    def ledger(self) -> FileLock:
        """Return the lock that is held briefly while space is freed. The files themselves are the
        ledger.

        Raises TimeoutError if a process that makes no progress holds it.
        """
        return FileLock.acquire(self.root / "ledger.lock", self._lock_timeout_s)

    def open_whole(self, entry: CacheEntry) -> FileHandle | None:
        """Open the whole shard and mark it as used; None if it is missing or must be verified again
        first."""
        found = shard_record.read(self.path(entry, "json"))
        if found is None or found.hash is None or found.boot != shard_record.boot():
            return None
        file = self._open(self.path(entry, "shard"))
        if file is None or file.size != entry.bytes or file.mode != WHOLE:
            return None
        mark_used(file.fd)
        os.utime(file.fd)
        return file

    def open_part(self, entry: CacheEntry) -> FileHandle | None:
        """Open the growing download and mark it as used; None if there is none."""
        file = self._open(self.path(entry, "part"))
        if file is not None:
            mark_used(file.fd)
        return file

    def part_size(self, entry: CacheEntry) -> int | None:
        """Return how many bytes of the download have arrived; None if there is none."""
        try:
            return self.path(entry, "part").lstat().st_size
        except FileNotFoundError:
            return None

    def finish(self, entry: CacheEntry, fd: int, found: CachedShardRecord) -> None:
        """Turn the part into the shard; `fd` is the open part, whole and verified."""
        shard_record.write(self.path(entry, "json"), found)
        os.fchmod(fd, WHOLE)
        self.path(entry, "part").rename(self.path(entry, "shard"))
        self.path(entry, "failed").unlink(missing_ok=True)

    def recheck(self, entry: CacheEntry) -> bool:
        """Verify a shard that was written before the last reboot by its hash, and trust it again.

        Returns False, and removes it, if it has changed. Its lock must be held.
        """
        file = self._open(self.path(entry, "shard"))
        if file is None:
            return False
        found = shard_record.read(self.path(entry, "json"))
        wanted = None if found is None or file.mode != WHOLE else found.hash
        if found is not None and wanted is not None and hash_of(file.fd) == wanted:
            shard_record.write(self.path(entry, "json"), found.whole(wanted))
            return True
        os.fchmod(file.fd, DROPPED)
        self.remove(entry)
        return False

    def remove(self, entry: CacheEntry) -> None:
        """Remove the shard and its record; readers that have it open keep it."""
        for kind in ("shard", "part", "json", "failed"):
            self.path(entry, kind).unlink(missing_ok=True)

    def discard_part(self, entry: CacheEntry, mode: int) -> None:
        """Remove an unfinished download and show its readers why by the permission bits `mode`."""
        path = self.path(entry, "part")
        with suppress(FileNotFoundError):
            path.chmod(mode)
            path.unlink()

    def keep_part(self, entry: CacheEntry, tag: str | None, known: bool) -> None:
        """Keep a part that can be resumed, remove any other.

        It can only be resumed if it is `known` by tag or hash that the object is still the same.
        """
        path = self.path(entry, "part")
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        found = shard_record.read(self.path(entry, "json"))
        if not (
            known
            and found is not None
            and found.boot == shard_record.boot()
            and found.tag == tag
            and stat.S_IMODE(status.st_mode) == GROWING
            and status.st_size <= entry.bytes
        ):
            self.discard_part(entry, DROPPED)

    def note_failure(
        self, entry: CacheEntry, problem: str, attempts: tuple[str, ...], *, damaged: bool = False
    ) -> None:
        """Record, for all that wait for this download, why it failed."""
        content = {"problem": problem, "attempts": attempts, "damaged": damaged}
        content["at_s"] = time.monotonic()
        path = self.path(entry, "failed")
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(content))
        temporary.replace(path)

    def failure(self, entry: CacheEntry, since_s: float) -> DownloadFailure | None:
        """Return the failure of a download since `since_s`, a monotonic time."""
        try:
            found = json.loads(self.path(entry, "failed").read_bytes())
            if since_s <= found["at_s"] <= since_s + _FAILED_S:
                attempts = tuple(map(str, found["attempts"]))
                return DownloadFailure(
                    str(found["problem"]), attempts, found.get("damaged") is True
                )
        except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
            pass
        return None

    def _open(self, path: Path) -> FileHandle | None:
        try:
            return FileHandle(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        # missing, or abandoned by the process that downloaded it
        except (FileNotFoundError, PermissionError):
            return None


def hash_of(fd: int) -> str:
    """Return the BLAKE3 (hex) of a whole open file. Raises OSError."""
    return hash_upto(fd, None).hexdigest()


def hash_upto(fd: int, end: int | None) -> "blake3":
    """Return a hasher that has read the first `end` bytes of an open file, or all of it."""
    hasher = blake3()
    at = 0
    while end is None or at < end:
        piece = os.pread(fd, _PIECE if end is None else min(_PIECE, end - at), at)
        if not piece:
            break
        hasher.update(piece)
        at += len(piece)
    return hasher
