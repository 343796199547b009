"""Getting one shard into the cache by one process of the node, in a thread of its own or inline."""

import logging
import os
import time

from data.cache.downloads.download_context import DownloadContext
from data.cache.downloads.download_stall import DownloadStallWatch
from data.cache.downloads.shard_download import Download, NoRoomError
from data.cache.downloads.shard_quarantine import move_to_quarantine
from data.cache.files.cache_entry import CacheEntry, ShardRef
from data.cache.files.file_locks import FileLock
from data.errors import DamagedShardError, DataError, FetchError, ObjectChangedError
from data.source.address import masked
from data.source.protocol import ObjectVersion, short_tag

_log = logging.getLogger(__name__)

_TELL_S = 0.005
_TURN_S = 0.1  # how often who waits for a turn looks whether another process has fetched it
POLL_S = 0.02  # how often another process's download is looked at


class DownloadJob:
    """Gets one shard; or waits for the process that does, and takes over if that one dies.

    `origin` and `entry` are known once the source has answered. In the end `done` is set, with
    `error` if it failed and `bypass` if the cache has no place for it.
    """

    def __init__(self, tools: DownloadContext, ref: ShardRef, when_s: float) -> None:
        self.ref, self.pid = ref, os.getpid()
        self.origin: ObjectVersion | None = None
        self.entry: CacheEntry | None = None
        self.error: BaseException | None = None
        self.bypass = False
        self.spoiled = False
        """Whether something came that was not the shard, even if that is mended by now."""
        self.no_room: str | None = None
        """Why the cache has no place for it."""
        self.done = False
        self.asked = False
        """Whether its source was asked for the version that there is."""
        self.round_trip_s = 0.0
        """That its source took to answer."""
        self._tools, self._when_s = tools, when_s
        self._url = masked(ref.url)
        self._told_s = float("-inf")

    @property
    def gets_wanted(self) -> bool:
        """Whether it gets the version that somebody wants who comes now."""
        if self.ref.hash is not None or not self.asked:
            return True
        return self.origin is not None and self.ref.tag == short_tag(self.origin.tag) != 0

    def run(self) -> None:
        """Do all of it in this thread."""
        try:
            self._run()
        except OSError as error:
            self._tools.trouble.note(error)
            self.bypass = True
        except BaseException as error:  # noqa: BLE001 (raised again by whoever reads the shard)
            self._tools.metrics.add(failures=1)
            self.error = error
        with self._tools.changed:
            self.done = True
            self._tools.changed.notify_all()

    def _run(self) -> None:
        try:
            self._once()
        except ObjectChangedError as error:
            self.spoiled = True
            _log.warning("%s; it is fetched anew", error)
            self._tools.metrics.add(refetches=1)
            self._once()

    def _once(self) -> None:
        self.asked, began_s = True, time.monotonic()
        origin = self._tools.sources.stat(self.ref.url)
        self.round_trip_s = time.monotonic() - began_s
        self.origin = _checked(origin, self.ref)
        size = self.ref.bytes if self.origin.bytes is None else self.origin.bytes
        if size is None:
            raise DataError(
                f"shard {self._url}: its length must be known before it is fetched; make an index"
                " of it first"
            )
        self.entry = CacheEntry.of(self.ref, size, self.origin.tag)
        self._step()
        if size > self._tools.budget.bytes:
            self._no_room(f"is larger than the cache, {size} bytes of {self._tools.budget.bytes}")
            return
        self._single(self.entry, self.origin)

    def _single(self, entry: CacheEntry, origin: ObjectVersion) -> None:
        """Single flight: download, or wait until somebody else has."""
        folder, since_s = self._tools.folder, time.monotonic()
        if folder.open_whole(entry) is not None:
            self._tools.metrics.add(hits=1)
            return
        self._tools.metrics.add(misses=1)
        watch = DownloadStallWatch(self._tools.frozen_s)
        while not self._tools.closing.is_set():
            if folder.open_whole(entry) is not None:
                return
            if not self._tools.turns.acquire(timeout=_TURN_S):
                continue
            try:
                if self._alone(entry, origin, since_s):
                    return
            finally:
                self._tools.turns.release()
            if watch.is_frozen(folder.part_size(entry), time.monotonic()):
                self._leave_frozen()
                return
            with self._tools.changed:
                self._tools.changed.wait(POLL_S)
        raise FetchError(self._url, "not fetched: the store was closed meanwhile")

    def _alone(self, entry: CacheEntry, origin: ObjectVersion, since_s: float) -> bool:
        """Whether nobody else was at it, and it is done."""
        folder = self._tools.folder
        lock = FileLock.try_acquire(folder.path(entry, "lock"))
        if lock is None:
            return False
        with lock:
            failure = folder.failure(entry, since_s)
            if failure is not None:  # of who had the lock while we waited
                self.spoiled = failure.damaged
                kind = DamagedShardError if failure.damaged else FetchError
                raise kind(self._url, failure.problem, failure.attempts)
            self._locked(entry, origin)
        return True

    def _locked(self, entry: CacheEntry, origin: ObjectVersion) -> None:
        """What the one does who holds the lock."""
        folder = self._tools.folder
        if folder.open_whole(entry) is not None or folder.recheck(entry):
            return
        download = Download(self._tools, self.ref, entry, origin, self._when_s, self._step)
        for again in (False, True):
            try:
                found = download.run()
            except NoRoomError as error:
                self._no_room(str(error))
                return
            if self.ref.hash in (None, found):
                return
            self.spoiled = True
            move_to_quarantine(folder, entry, "part")
            self._tools.metrics.add(quarantined=1, refetches=not again)
            wanted = self.ref.hash
            _log.warning("shard %s came with the hash %s and not %s", self._url, found, wanted)
        problem = f"came twice with other bytes than its manifest says, whose hash is {found}"
        folder.note_failure(entry, problem, (), damaged=True)
        raise DamagedShardError(self._url, problem)

    def _leave_frozen(self) -> None:
        """Whoever downloads it holds the lock and does not get on: nobody is to wait for that."""
        metrics = self._tools.metrics
        metrics.add(frozen=1)
        if metrics.frozen == 1:
            _log.warning(
                "shard %s is downloaded by a process that has not got on for %.0f s: it is read"
                " from its source; this is said once, see the metrics for how often it happens",
                self._url,
                self._tools.frozen_s,
            )
        self.bypass = True

    def _no_room(self, problem: str) -> None:
        self._tools.metrics.add(no_room=1)
        _log.info("shard %s %s and is read from its source", self._url, problem)
        self.no_room, self.bypass = problem, True

    def _step(self) -> None:
        """Wake those who wait, though not for every piece."""
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_S:
            self._told_s = now_s
            with self._tools.changed:
                self._tools.changed.notify_all()


def _checked(origin: ObjectVersion, ref: ShardRef) -> ObjectVersion:
    """Raises FetchError if the object is not as long as the manifest says."""
    if None not in (ref.bytes, origin.bytes) and ref.bytes != origin.bytes:
        raise FetchError(
            masked(ref.url),
            f"is {origin.bytes} bytes long and its manifest says {ref.bytes}: it was replaced, or"
            " not uploaded to its end; index it again",
        )
    return origin


def copy_of_error(error: BaseException) -> BaseException:
    """A copy to raise in another thread, with the trace of its own."""
    return type(error)(*error.args) if isinstance(error, DataError) else error
