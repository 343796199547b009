"""The files of a cache, and what may be done with them. Raises OSError where the disk fails."""

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
_FAILED_S = 3600.0  # how long a .failed file is kept at most


class DownloadFailure(NamedTuple):
    """Why a download failed."""

    problem: str
    attempts: tuple[str, ...]
    damaged: bool
    """Whether it came, and was not what it should be."""


class CacheFolder:
    """The folder `root`; holds no state beside it, so any process may come and go.

    Args:
        patience_s: how long to wait for what another process holds for moments.
    """

    def __init__(self, root: Path, patience_s: float = 30.0) -> None:
        self.root, self._patience_s = root, patience_s
        self.plans = root / "plans"
        self.quarantine = root / "quarantine"

    def make(self, allow_shared: bool) -> None:
        """Make the folder for this user alone.

        Raises DataError if it is another user's, no folder, or on a file system that other
        machines share, unless that is allowed.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.root.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise DataError(
                f"cache {self.root}: not a folder of this user's own; give another place"
            )
        if status.st_mode & 0o022:
            raise DataError(
                f"cache {self.root}: others can write in it, and may have put anything there;"
                " remove it, or give another place"
            )
        if status.st_mode & 0o077:
            self.root.chmod(0o700)
        kind = kind_of(self.root)
        if kind in SHARED and not allow_shared:
            raise DataError(
                f"cache {self.root} is on a file system of kind {kind}, which machines share; give"
                " a folder on a local disk, or allow_shared=True if there is none"
            )
        if kind in SHARED:
            _log.warning("cache %s is on %s: slower than a local disk", self.root, kind)

    def path(self, entry: CacheEntry, kind: str) -> Path:
        return self.root / f"{entry.stem}.{kind}"

    def ledger(self) -> FileLock:
        """Held while room is made, shortly; the files themselves are the ledger.

        Raises TimeoutError if somebody has it who does not get on.
        """
        return FileLock.acquire(self.root / "ledger.lock", self._patience_s)

    def open_whole(self, entry: CacheEntry) -> FileHandle | None:
        """The whole shard, open and marked as used; None if it is not there or not to be trusted
        before it was looked at again."""
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
        """The growing download, open and marked as used; None if there is none."""
        file = self._open(self.path(entry, "part"))
        if file is not None:
            mark_used(file.fd)
        return file

    def part_size(self, entry: CacheEntry) -> int | None:
        """How far the download is; None if there is none."""
        try:
            return self.path(entry, "part").lstat().st_size
        except FileNotFoundError:
            return None

    def finish(self, entry: CacheEntry, fd: int, found: CachedShardRecord) -> None:
        """Make the part the shard; `fd` is the open part, whole and verified."""
        shard_record.write(self.path(entry, "json"), found)
        os.fchmod(fd, WHOLE)
        self.path(entry, "part").rename(self.path(entry, "shard"))
        self.path(entry, "failed").unlink(missing_ok=True)

    def recheck(self, entry: CacheEntry) -> bool:
        """Compare a shard from another run of the machine with its hash, and trust it again.

        False, and it is removed, if it is not what it was. Its lock must be held.
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
        """Remove the shard and what is known of it; readers that have it open keep it."""
        for kind in ("shard", "part", "json", "failed"):
            self.path(entry, kind).unlink(missing_ok=True)

    def discard_part(self, entry: CacheEntry, mode: int) -> None:
        """Remove an unfinished download and tell its readers why by `mode`."""
        path = self.path(entry, "part")
        with suppress(FileNotFoundError):
            path.chmod(mode)
            path.unlink()

    def keep_part(self, entry: CacheEntry, tag: str | None, known: bool) -> None:
        """Leave a part that can be gone on with, remove any other.

        None can if it is not `known` by tag or hash that the object is still the same.
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
        """Tell all who wait for this download why it failed."""
        content = {"problem": problem, "attempts": attempts, "damaged": damaged}
        content["at_s"] = time.monotonic()
        path = self.path(entry, "failed")
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(content))
        temporary.replace(path)

    def failure(self, entry: CacheEntry, since_s: float) -> DownloadFailure | None:
        """Of a download that failed after `since_s`, a monotonic time."""
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
        except (FileNotFoundError, PermissionError):  # not there, or given up by its downloader
            return None


def hash_of(fd: int) -> str:
    """blake3 in hex of a whole open file. Raises OSError."""
    return hash_upto(fd, None).hexdigest()


def hash_upto(fd: int, end: int | None) -> "blake3":
    """A hasher that has seen the first `end` bytes of an open file, or all."""
    hasher = blake3()
    at = 0
    while end is None or at < end:
        piece = os.pread(fd, _PIECE if end is None else min(_PIECE, end - at), at)
        if not piece:
            break
        hasher.update(piece)
        at += len(piece)
    return hasher
