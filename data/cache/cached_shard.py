"""The bytes of one shard, which are read from the cache, from a growing download or from its
source."""

import logging
import os
import threading
import time
from dataclasses import dataclass

from data.cache.cache_disk import CacheDisk
from data.cache.downloads.download_job import POLL_S, DownloadJob, copy_of_error
from data.cache.downloads.download_jobs import DownloadJobs
from data.cache.downloads.separate_read_choice import (
    DownloadPace,
    is_affordable,
    is_early,
    is_quicker,
)
from data.cache.downloads.unverified_reads import UnverifiedReads
from data.cache.files.cache_entry import DAMAGED, DROPPED, WHOLE, CacheEntry, ShardRef
from data.cache.files.file_handle import FileHandle
from data.errors import DamagedShardError, DataError, FetchError, ShardError
from data.source.address import masked
from data.source.protocol import FirstTag
from data.source.sources import Sources

_log = logging.getLogger(__name__)

# downloads of one shard that vanished before they were read, until the cache is bypassed
_STARTS = 3


@dataclass(frozen=True)
class ReadPolicy:
    """The policy by which reads wait for a download; see `NodeStore`."""

    read_growing: bool
    wait_bytes: int
    nodes: int = 1
    """The nodes that share their caches, of one job."""


class CachedShard:
    """The bytes of a shard; thread-safe. Created by `NodeStore.open`."""

    def __init__(
        self,
        ref: ShardRef,
        disk: CacheDisk,
        jobs: DownloadJobs,
        sources: Sources,
        policy: ReadPolicy,
        unverified: UnverifiedReads,
    ) -> None:
        self.ref, self._unverified = ref, unverified
        self._disk, self._jobs, self._sources, self._read_policy = disk, jobs, sources, policy
        self._url = masked(ref.url)
        self._lock = threading.RLock()
        self._file: FileHandle | None = None
        self._entry: CacheEntry | None = None
        self._job: DownloadJob | None = None
        self._whole = self._direct = self._closed = False
        self._has_unverified = False  # unverified bytes were returned
        self._starts = 0
        self._pace = DownloadPace(time.monotonic())
        self._ranged_bytes = 0  # bytes that were read from the source instead of waiting

    @property
    def local(self) -> bool:
        """Whether the whole shard is known to be in a file of this machine."""
        return self._whole

    @property
    def is_read_from_source(self) -> bool:
        """Whether each read is a request to the source."""
        return self._direct

    def pread(self, offset: int, size: int, *, compares: bool = False) -> bytes:
        """Read bytes [offset, offset + size), and wait until they are available.

        Args:
            compares: the caller knows the right bytes and compares them, so it need not be notified
                if the hash of the shard later proves wrong.

        Raises FetchError, with every attempt, if they cannot be fetched; ObjectChangedError and
        DamagedShardError if bytes that were read before may have been wrong; ShardError if the
        shard ends before; DataError for an invalid range or a closed shard.
        """
        if offset < 0 or size < 0:
            raise DataError(
                f"shard {self._url}: the range of {size} bytes from byte {offset} is "
                "outside the shard"
            )
        if self.ref.bytes is not None:
            self._check_end(offset + size, self.ref.bytes)
        seen = self._arrived
        data = self._attempt(offset, size, compares)
        if data is None:
            began_s, waited_s = time.monotonic(), 0.0
            while data is None:
                self._wait(offset + size, seen, waited_s)
                waited_s = time.monotonic() - began_s
                seen = self._arrived
                data = self._attempt(offset, size, compares)
            self._disk.metrics.add(waits=1, wait_s=waited_s)
        return data

    def pread_arrived(self, offset: int, size: int, *, compares: bool = False) -> bytes | None:
        """Read bytes [offset, offset + size) as `pread`, if that needs no waiting and no request;
        None if it does."""
        if self._direct:
            return None
        return self._attempt(offset, size, compares, waits=False)

    def whole_file(self) -> FileHandle | None:
        """The file of this machine that holds the whole shard, if one is known."""
        with self._lock:
            return self._file if self._whole else None

    def quarantine(self, reason: str) -> None:
        """Report that what was read is damaged: the shard is fetched again for later reads.

        A download that is still under way is waited for; if the hash of the shard is known, it
        gives the right bytes.

        Raises DamagedShardError if fetching again does not help, or the shard is not in this cache.
        """
        with self._lock:
            if self._entry is None and self._whole:
                raise DamagedShardError(self._url, f"{reason}; the file itself is damaged")
            was_whole = self._whole
        while not self._whole and not self._direct:
            if self._attempt(0, 0, whole=True) is None:
                self._jobs.wait(POLL_S)
        with self._lock:
            if self._whole and not was_whole and self.ref.hash is not None:
                return
            file, entry = self._file, self._entry
            if file is None or entry is None:
                raise DamagedShardError(self._url, f"{reason}; its source has the same bytes")
            self._disk.report(self.ref, entry, file, reason)
            self._file, self._whole, self._has_unverified = None, False, False
            self._starts = 0  # the file did not vanish
            self._restart_download()

    def close(self) -> None:
        """Close the file; a download continues for other readers."""
        with self._lock:
            self._file, self._closed = None, True

    def __enter__(self) -> "CachedShard":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def use_file(self, file: FileHandle, entry: CacheEntry | None) -> None:
        """Read from a whole file: a local shard, or the one of `entry` in the cache."""
        self._file, self._entry, self._whole = file, entry, True

    def use_job(self, job: DownloadJob) -> None:
        """Read from the growing file of `job` while it downloads."""
        self._job, self._pace = job, DownloadPace(time.monotonic())
        self._starts += 1

    def use_source(self) -> None:
        """Read from the source."""
        self._direct = True

    @property
    def _arrived(self) -> int:
        """The bytes that the download of this process has brought."""
        job = self._job
        return 0 if job is None else job.have

    def _wait(self, end: int, seen: int, waited_s: float) -> None:
        """Wait for the download as `DownloadJob.wait`; not if there is none, as where a cached file
        could not be read."""
        if (job := self._job) is not None:
            job.wait(end, seen, waited_s)

    def _attempt(
        self,
        offset: int,
        size: int,
        compares: bool = False,
        *,
        whole: bool = False,
        waits: bool = True,
    ) -> bytes | None:
        """Return the bytes, or None if they must be waited for.

        Args:
            whole: only the verified shard counts.
            waits: whether they may be requested from the source.
        """
        end = offset + size
        with self._lock:
            if self._closed:
                raise DataError(f"shard {self._url} is closed")
            if not self._whole and not self._direct:
                self._find_bytes()
            file, direct = self._file, self._direct
            is_coming = not self._whole and not direct
            if is_coming and (whole or not self._can_read_growing(file, end, compares)):
                if not waits:
                    return None
                direct = not whole and self._prefers_source(file, offset, size, compares)
                if not direct:
                    if file is not None:
                        self._check_download()
                    return None
        if direct and not waits:
            return None
        if direct:
            return b"" if whole else self._read_source(offset, size, compares)
        return None if file is None else self._read_file(file, offset, size)

    def _find_bytes(self) -> None:
        """Find out where to read from: the cache, the growing download or the source."""
        job = self._job
        assert job is not None
        if self._file is None and job.entry is not None:
            self._entry = job.entry
            self._file, self._whole = self._disk.open(job.entry)
        if self._file is not None:
            self._check_mode(self._file)
        if self._file is not None:
            return
        if job.error is not None:
            raise copy_of_error(job.error)
        if job.bypass or self._disk.failures.is_paused:
            self._switch_to_source(job)
        elif job.done or job.pid != os.getpid():
            self._restart_download()

    def _switch_to_source(self, job: DownloadJob) -> None:
        """Read from the source from now on, and log the reason once if the cache has no room."""
        self._direct = True
        if job.no_room is not None:
            self._disk.log_bypass(self._url, job.no_room)

    def _restart_download(self) -> None:
        """Start another download, at most `_STARTS` times; after that, read from the source."""
        if self._starts < _STARTS:
            needed_s = min(time.monotonic(), self._disk.due_s(self.ref))
            self.use_job(self._jobs.start(self.ref, needed_s))
        else:
            _log.warning(
                "shard %s was removed from the cache %d times before it was read: it is read from"
                " its source",
                self._url,
                _STARTS,
            )
            self._direct = True

    def _check_mode(self, file: FileHandle) -> None:
        mode = file.mode
        if mode == WHOLE:
            self._whole = True
        elif mode == DAMAGED and self._has_unverified:
            raise self._retraction_error()
        elif mode in (DAMAGED, DROPPED):
            self._file = None

    def _retraction_error(self) -> FetchError:
        error = self._job.error if self._job is not None else None
        if isinstance(error, FetchError):
            return type(error)(*error.args)
        return DamagedShardError(
            self._url,
            "some of it was read during its download, which then proved to be damaged or another"
            " version: do not use what was read from it",
        )

    def _check_download(self) -> None:
        """Find out whether the missing bytes of the growing file will still come; raises if not."""
        job = self._job
        assert job is not None
        if job.error is not None:
            raise copy_of_error(job.error)
        if job.bypass:
            self._switch_to_source(job)
        elif job.done or job.pid != os.getpid():  # a file that grows now is not this one
            self._file = None

    def _can_read_growing(self, file: FileHandle | None, end: int, compares: bool) -> bool:
        """Return whether the growing file holds the bytes up to `end` and may be read unverified.

        It may not if all of it has arrived: it will be verified in a moment, so a reader of the
        shard's end never gets unverified bytes. Nor may a reader that does not compare them if they
        may come from other nodes: what is wrong of those is fetched again, and is no error.
        """
        if file is None or (self._read_policy.nodes > 1 and not compares):
            return False
        assert self._entry is not None
        self._check_end(end, self._entry.bytes)
        size = file.size
        if not self._read_policy.read_growing or not end <= size < self._entry.bytes:
            return False
        if not compares:
            self._note_unverified(file)
        return True

    def _note_unverified(self, file: FileHandle | None) -> None:
        """Note that unverified bytes of `file` (None: of the source) are returned to the reader."""
        self._has_unverified = True
        if self._job is not None:
            self._unverified.served(self._url, self._job, file)

    def _prefers_source(
        self, file: FileHandle | None, offset: int, size: int, compares: bool
    ) -> bool:
        """Return whether to request a range from the source rather than wait for the download.

        A reader that compares the bytes itself need not wait until the version of the object is
        known.
        """
        job = self._job
        if job is None or job.done or job.pid != os.getpid() or not self._read_policy.read_growing:
            return False
        if job.origin is None and not compares:
            return False
        whole = self.ref.bytes if job.origin is None else job.origin.bytes
        if whole is None:
            return False
        self._check_end(offset + size, whole)
        have = 0 if file is None else file.size
        if offset + size <= have:
            return False  # will be verified in a moment
        if offset + size - have > self._read_policy.wait_bytes:
            return True
        pace = self._pace.seen(have, time.monotonic())
        nodes = self._read_policy.nodes
        early = is_early(size, self._ranged_bytes, whole, nodes)
        if not is_quicker(offset - have, *pace, job.round_trip_s, early=early):
            return False
        if not is_affordable(size, self._ranged_bytes, whole, nodes):
            return False
        self._ranged_bytes += size
        return True

    def _read_file(self, file: FileHandle, offset: int, size: int) -> bytes | None:
        try:
            data = file.read(offset, size)
        except OSError as error:
            if self._entry is None:
                problem = f"cannot be read: {os.strerror(error.errno or 0)}"
                raise FetchError(self._url, problem) from error
            self._handle_read_error(file, self._entry, error)
            return None
        self._check_end(offset + size, offset + len(data))
        return data

    def _handle_read_error(self, file: FileHandle, entry: CacheEntry, error: OSError) -> None:
        """Handle a read error of the cache's disk: note it, remove the shard and read from the
        source."""
        self._disk.failures.note(error)
        with self._lock:
            if self._file is file:
                self._file, self._whole, self._direct = None, False, True
                self._disk.forget(entry)

    def _read_source(self, offset: int, size: int, compares: bool) -> bytes:
        if not compares:
            self._note_unverified(None)
        origin = self._job.origin if self._job is not None else None
        tag: str | FirstTag | None = None if origin is None else origin.tag
        if origin is None and not compares:
            tag = self._sources.first_tag(self.ref.url)  # no two versions are mixed
        began_s = time.monotonic()
        data = self._sources.read(self.ref.url, offset, size, tag)
        spent_s = time.monotonic() - began_s
        count = self._disk.metrics.add
        count(bypasses=1, bytes_fetched=len(data), wait_s=spent_s, past_s=spent_s)
        return data

    def _check_end(self, end: int, size: int) -> None:
        if end > size:
            raise ShardError(self._url, size, f"it ends here, before byte {end} that is needed")
