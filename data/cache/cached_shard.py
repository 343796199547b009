"""One open shard: its bytes, from wherever they are to be had."""

import logging
import os
import threading
import time
from dataclasses import dataclass

from data.cache.cache_disk import CacheDisk
from data.cache.downloads.download_job import POLL_S, DownloadJob, copy_of_error
from data.cache.downloads.download_jobs import DownloadJobs
from data.cache.downloads.download_pace import DownloadPace, is_affordable, is_early, is_quicker
from data.cache.downloads.unverified_reads import UnverifiedReads
from data.cache.files.cache_entry import DAMAGED, DROPPED, WHOLE, CacheEntry, ShardRef
from data.cache.files.file_handle import FileHandle
from data.errors import DamagedShardError, DataError, FetchError, ShardError
from data.source.address import masked
from data.source.sources import Sources

_log = logging.getLogger(__name__)

_STARTS = 3  # downloads of one shard that vanished before they were read, until it is given up


@dataclass(frozen=True)
class ReadPolicy:
    """How reads wait for a download; see `NodeStore`."""

    read_growing: bool
    wait_bytes: int


class CachedShard:
    """The bytes of a shard; thread-safe. Made by `NodeStore.open`."""

    def __init__(
        self,
        ref: ShardRef,
        disk: CacheDisk,
        jobs: DownloadJobs,
        sources: Sources,
        patience: ReadPolicy,
        unverified: UnverifiedReads,
    ) -> None:
        self.ref, self._unverified = ref, unverified
        self._disk, self._jobs, self._sources, self._patience = disk, jobs, sources, patience
        self._url = masked(ref.url)
        self._lock = threading.RLock()
        self._file: FileHandle | None = None
        self._entry: CacheEntry | None = None
        self._job: DownloadJob | None = None
        self._whole = self._direct = self._closed = False
        self._served = False  # bytes that were not verified
        self._starts = 0
        self._pace = DownloadPace(time.monotonic())
        self._ranged = 0  # bytes that were not waited for

    @property
    def local(self) -> bool:
        """Whether all of it is known to be in a file of this machine."""
        return self._whole

    def pread(self, offset: int, size: int, *, compares: bool = False) -> bytes:
        """Bytes [offset, offset + size), as soon as they are there.

        Args:
            compares: the caller knows what they must be, and compares them: so nobody is to be told
                if the hash of the shard, which is seen later, proves wrong.

        Raises FetchError if they cannot be had, with every attempt; ObjectChangedError and
        DamagedShardError if bytes read before may have been wrong; ShardError if the shard ends
        before; DataError for a range that makes no sense or a closed shard.
        """
        if offset < 0 or size < 0:
            raise DataError(f"shard {self._url}: no such range: {offset}, {size} bytes")
        if self.ref.bytes is not None:
            self._check_end(offset + size, self.ref.bytes)
        data = self._attempt(offset, size, compares)
        if data is None:
            began_s = time.monotonic()
            while data is None:
                self._jobs.wait(POLL_S)
                waited_s = time.monotonic() - began_s
                data = self._attempt(offset, size, compares)
            self._disk.metrics.add(waits=1, wait_s=waited_s)
        return data

    def whole_file(self) -> FileHandle | None:
        """The file, where all of it lies in one of this machine, as far as is known."""
        with self._lock:
            return self._file if self._whole else None

    def quarantine(self, reason: str) -> None:
        """What was read is damaged: the shard is fetched once more, and later reads are of that.

        If it was still on its way, that is waited for: if its hash is known, what comes is right.

        Raises DamagedShardError where that does not help, or is not ours to do.
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
                raise DamagedShardError(self._url, f"{reason}; it came from its source like that")
            self._disk.report(self.ref, entry, file, reason)
            self._file, self._whole, self._served = None, False, False
            self._starts = 0  # it did not vanish
            self._begin()

    def close(self) -> None:
        """Free the file; a download goes on for others."""
        with self._lock:
            self._file, self._closed = None, True

    def __enter__(self) -> "CachedShard":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def use_file(self, file: FileHandle, entry: CacheEntry | None) -> None:
        """Read from a whole file: a local shard, or `entry` of the cache."""
        self._file, self._entry, self._whole = file, entry, True

    def use_job(self, job: DownloadJob) -> None:
        """Read what `job` gets, while it does."""
        self._job, self._pace = job, DownloadPace(time.monotonic())
        self._starts += 1

    def use_source(self) -> None:
        """Read from the source."""
        self._direct = True

    def _attempt(
        self, offset: int, size: int, compares: bool = False, *, whole: bool = False
    ) -> bytes | None:
        """The bytes, or None if they have to be waited for; with `whole`, the verified shard."""
        end = offset + size
        with self._lock:
            if self._closed:
                raise DataError(f"shard {self._url} is closed")
            if not self._whole and not self._direct:
                self._look()
            file, direct = self._file, self._direct
            is_coming = not self._whole and not direct
            if is_coming and (whole or not self._there(file, end, compares)):
                direct = not whole and self._goes_past(file, offset, size, compares)
                if not direct:
                    if file is not None:
                        self._see_to()
                    return None
        if direct:
            return b"" if whole else self._read_source(offset, size, compares)
        return None if file is None else self._read_file(file, offset, size)

    def _look(self) -> None:
        """Find out where the bytes are to come from."""
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
        if job.bypass or self._disk.trouble.pausing:
            self._go_past(job)
        elif job.done or job.pid != os.getpid():
            self._begin()

    def _go_past(self, job: DownloadJob) -> None:
        """Read it from its source from now on, and say why if nobody has."""
        self._direct = True
        if job.no_room is not None:
            self._disk.tell_past(self._url, job.no_room)

    def _begin(self) -> None:
        """Have it fetched anew, though not for ever."""
        if self._starts < _STARTS:
            self.use_job(self._jobs.start(self.ref, time.monotonic()))
        else:
            _log.warning("shard %s vanishes from the cache, again and again", self._url)
            self._direct = True

    def _check_mode(self, file: FileHandle) -> None:
        mode = file.mode
        if mode == WHOLE:
            self._whole = True
        elif mode == DAMAGED and self._served:
            raise self._taken_back()
        elif mode in (DAMAGED, DROPPED):
            self._file = None

    def _taken_back(self) -> FetchError:
        error = self._job.error if self._job is not None else None
        if isinstance(error, FetchError):
            return type(error)(*error.args)
        return DamagedShardError(
            self._url,
            "some of it was read while it was on its way, and in the end it proved to be damaged,"
            " or another version: what was read of it is not to be used",
        )

    def _see_to(self) -> None:
        """What is wanted of the growing file is not there yet: will it ever be?"""
        job = self._job
        assert job is not None
        if job.error is not None:
            raise copy_of_error(job.error)
        if job.bypass:
            self._go_past(job)
        elif job.done or job.pid != os.getpid():  # what grows, if it does, is another file
            self._file = None

    def _there(self, file: FileHandle | None, end: int, compares: bool) -> bool:
        """Whether the growing file reaches `end`, and may be read.

        Not if all of it is there: it will be known to be right or wrong in a moment, so whoever
        reads to the end never ends with something that was not verified.
        """
        if file is None:
            return False
        assert self._entry is not None
        self._check_end(end, self._entry.bytes)
        size = file.size
        if not self._patience.read_growing or not end <= size < self._entry.bytes:
            return False
        if not compares:
            self._serve(file)
        return True

    def _serve(self, file: FileHandle | None) -> None:
        """Bytes of it, None: of its source, are given, and nobody knows yet if they are right."""
        self._served = True
        if self._job is not None:
            self._unverified.served(self._url, self._job, file)

    def _goes_past(self, file: FileHandle | None, offset: int, size: int, compares: bool) -> bool:
        """Whether to ask the source for a range rather than wait for the download.

        Who compares need not even know yet which version there is.
        """
        job = self._job
        if job is None or job.done or job.pid != os.getpid() or not self._patience.read_growing:
            return False
        if job.origin is None and not compares:
            return False
        whole = self.ref.bytes if job.origin is None else job.origin.bytes
        if whole is None:
            return False
        self._check_end(offset + size, whole)
        have = 0 if file is None else file.size
        if offset + size <= have:
            return False  # about to be verified
        if offset + size - have > self._patience.wait_bytes:
            return True
        pace = self._pace.seen(have, time.monotonic())
        early = is_early(size, self._ranged, whole)
        if not is_quicker(offset - have, *pace, job.round_trip_s, early=early):
            return False
        if not is_affordable(size, self._ranged, whole):
            return False
        self._ranged += size
        return True

    def _read_file(self, file: FileHandle, offset: int, size: int) -> bytes | None:
        try:
            data = file.read(offset, size)
        except OSError as error:
            if self._entry is None:
                problem = f"cannot be read: {os.strerror(error.errno or 0)}"
                raise FetchError(self._url, problem) from error
            self._lost(file, self._entry, error)
            return None
        self._check_end(offset + size, offset + len(data))
        return data

    def _lost(self, file: FileHandle, entry: CacheEntry, error: OSError) -> None:
        """The disk of the cache does not give back what it took."""
        self._disk.trouble.note(error)
        with self._lock:
            if self._file is file:
                self._file, self._whole, self._direct = None, False, True
                self._disk.forget(entry)

    def _read_source(self, offset: int, size: int, compares: bool) -> bytes:
        if not compares:
            self._serve(None)
        origin = self._job.origin if self._job is not None else None
        tag = None if origin is None else origin.tag
        began_s = time.monotonic()
        data = self._sources.read(self.ref.url, offset, size, tag)
        spent_s = time.monotonic() - began_s
        count = self._disk.metrics.add
        count(bypasses=1, bytes_fetched=len(data), wait_s=spent_s, past_s=spent_s)
        return data

    def _check_end(self, end: int, size: int) -> None:
        if end > size:
            raise ShardError(self._url, size, f"it ends here, and {end} was to be read")
