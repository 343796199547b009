"""One open shard: its bytes, from wherever they are to be had."""

import logging
import os
import stat
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from data.cache.entry import DAMAGED, DROPPED, WHOLE, Entry, ShardRef
from data.cache.job import POLL_S, Job
from data.errors import DamagedShardError, DataError, FetchError, ShardError
from data.source.address import masked
from data.source.file import read_at

if TYPE_CHECKING:
    from data.cache.store import NodeStore

_log = logging.getLogger(__name__)

_STARTS = 3  # downloads of one shard that vanished before they were read, until it is given up


class OpenShard:
    """The bytes of a shard; thread-safe. Made by `NodeStore.open`."""

    def __init__(self, store: "NodeStore", ref: ShardRef) -> None:
        self.ref = ref
        self._store = store
        self._url = masked(ref.url)
        self._lock = threading.RLock()
        self._fd: int | None = None
        self._old: list[int] = []  # may still be read by other threads
        self._whole = False
        self._direct = False
        self._served = False  # bytes of a download that was not whole yet
        self._entry: Entry | None = None
        self._job: Job | None = None
        self._starts = 0
        self._complaints = 0
        self._closed = False

    @property
    def local(self) -> bool:
        """Whether all of it is in a file of this machine by now."""
        return self._whole

    def pread(self, offset: int, size: int) -> bytes:
        """Bytes [offset, offset + size), as soon as they are there.

        Raises FetchError if they cannot be had, with every attempt; ObjectChangedError and
        DamagedShardError if bytes read before may have been wrong; ShardError if the shard ends
        before; DataError for a range that makes no sense or a closed shard.
        """
        if offset < 0 or size < 0:
            raise DataError(f"shard {self._url}: no such range: {offset}, {size} bytes")
        data = self._attempt(offset, size)
        if data is not None:
            return data
        metrics, began_s = self._store.metrics, time.monotonic()
        metrics.add(waits=1)
        try:
            while (data := self._attempt(offset, size)) is None:
                self._store.wait(POLL_S)
        finally:
            metrics.add(wait_s=time.monotonic() - began_s)
        return data

    def quarantine(self, reason: str) -> None:
        """What was read is damaged: the shard is fetched once more, and later reads are of that.

        Raises DamagedShardError where that does not help, or is not ours to do.
        """
        with self._lock:
            self._complaints += 1
            if self._entry is None and self._whole:
                raise DamagedShardError(self._url, f"{reason}; the file itself is damaged")
        while not self._whole and not self._direct:
            if self._attempt(0, 0, whole=True) is None:
                self._store.wait(POLL_S)
        with self._lock:
            if self._complaints > 1 or self._direct:
                raise DamagedShardError(self._url, f"{reason}; it came from its source like that")
            assert self._entry is not None
            assert self._fd is not None
            self._store.report(self.ref, self._entry, self._fd, reason)
            self._reopen()

    def close(self) -> None:
        """Free the files; a download goes on for others."""
        with self._lock:
            fds = [*self._old, *([] if self._fd is None else [self._fd])]
            self._fd, self._old, self._closed = None, [], True
        for fd in fds:
            os.close(fd)

    def __enter__(self) -> "OpenShard":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()

    def _use_file(self, fd: int, entry: Entry | None) -> None:
        """Read from a whole file: a local shard, or `entry` of the cache."""
        self._fd, self._entry, self._whole = fd, entry, True

    def _use_job(self, job: Job) -> None:
        self._job = job
        self._starts += 1

    def _use_source(self) -> None:
        self._direct = True

    def _attempt(self, offset: int, size: int, whole: bool = False) -> bytes | None:
        """The bytes, or None if they have to be waited for."""
        with self._lock:
            if self._closed:
                raise DataError(f"shard {self._url} is closed")
            if not self._whole and not self._direct:
                self._look()
            direct, fd, job, certain = self._direct, self._fd, self._job, self._whole
            growing = fd if not direct and not certain else None
            if growing is not None and not self._there(growing, offset + size, whole):
                direct = self._too_far(growing, offset + size, job)
                if not direct:
                    self._see_to(growing)
                    return None
        if direct:
            return b"" if whole else self._read_source(offset, size, job)
        return None if fd is None else self._read_file(fd, offset, size)

    def _look(self) -> None:
        """Find out where the bytes are to come from."""
        job = self._job
        assert job is not None
        if self._fd is None and job.entry is not None:
            self._entry = job.entry
            self._open(job.entry)
        if self._fd is not None:
            self._check_mode(self._fd)
        if self._fd is not None:
            return
        if job.error is not None:
            raise _again(job.error)
        if job.bypass:
            self._direct = True
        elif job.done or job.pid != os.getpid():
            if self._starts >= _STARTS:
                _log.warning("shard %s vanishes from the cache, again and again", self._url)
                self._direct = True
            else:
                self._use_job(self._store.start(self.ref))

    def _open(self, entry: Entry) -> None:
        folder = self._store.folder
        try:
            self._fd = folder.open_whole(entry)
            self._whole = self._fd is not None
            if self._fd is None:
                self._fd = folder.open_part(entry)
        except OSError as error:
            self._store.trouble.note(error)
            self._direct = True

    def _check_mode(self, fd: int) -> None:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode == WHOLE:
            self._whole = True
        elif mode == DAMAGED and self._served:
            raise self._taken_back()
        elif mode in (DAMAGED, DROPPED):
            self._old.append(fd)
            self._fd = None

    def _see_to(self, fd: int) -> None:
        """What is wanted of the growing file at `fd` is not there yet: will it ever be?"""
        job = self._job
        assert job is not None
        if job.error is not None:
            raise _again(job.error)
        if job.bypass:
            self._direct = True
        elif job.done or job.pid != os.getpid():  # what grows, if it does, is another file
            self._old.append(fd)
            self._fd = None

    def _taken_back(self) -> FetchError:
        error = self._job.error if self._job is not None else None
        if isinstance(error, FetchError):
            return type(error)(*error.args)
        return DamagedShardError(
            self._url,
            "some of it was read while it was on its way, and in the end it proved to be damaged,"
            " or another version: what was read of it is not to be used",
        )

    def _there(self, fd: int, end: int, whole: bool) -> bool:
        """Whether the growing file reaches `end`, and may be read.

        Not if all of it is there: it will be known to be right or wrong in a moment, so whoever
        reads to the end never ends with something that was not verified.
        """
        if whole or not self._store.read_growing:
            return False
        self._check_end(end)
        size = os.fstat(fd).st_size
        if size < end or (self._entry is not None and size >= self._entry.bytes):
            return False
        self._served = True
        return True

    def _check_end(self, end: int) -> None:
        size = self._entry.bytes if self._entry is not None else self.ref.bytes
        if size is not None and end > size:
            raise ShardError(self._url, size, f"it ends here, and {end} was to be read")

    def _too_far(self, fd: int, end: int, job: Job | None) -> bool:
        """Whether to ask the source for a range rather than wait for the download."""
        if job is None or job.origin is None or job.origin.bytes is None:
            return False
        far = end - os.fstat(fd).st_size > self._store.wait_bytes
        return far and self._store.read_growing

    def _read_file(self, fd: int, offset: int, size: int) -> bytes | None:
        try:
            data = read_at(fd, offset, size)
        except OSError as error:
            if self._entry is None:
                raise FetchError(
                    self._url, f"cannot be read: {os.strerror(error.errno or 0)}"
                ) from error
            self._lost(fd, error)
            return None
        if len(data) < size:
            end = offset + len(data)
            raise ShardError(self._url, end, f"it ends here, and {offset + size} was to be read")
        return data

    def _lost(self, fd: int, error: OSError) -> None:
        """The disk of the cache no longer gives what it took."""
        self._store.trouble.note(error)
        with self._lock:
            if self._fd == fd:
                self._old.append(fd)
                self._fd, self._whole, self._direct = None, False, True
                self._store.forget(self._entry)

    def _read_source(self, offset: int, size: int, job: Job | None) -> bytes:
        self._check_end(offset + size)
        self._served = True
        tag = job.origin.tag if job is not None and job.origin is not None else None
        data = self._store.sources.read(self.ref.url, offset, size, tag)
        self._store.metrics.add(bypasses=1, bytes_fetched=len(data))
        return data

    def _reopen(self) -> None:
        if self._fd is not None:
            self._old.append(self._fd)
        self._fd, self._whole, self._served = None, False, False
        self._use_job(self._store.start(self.ref))


def _again(error: BaseException) -> BaseException:
    """A copy to raise in this thread, with the trace of its own."""
    if isinstance(error, DataError):
        return type(error)(*error.args)
    return error
