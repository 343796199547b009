"""Downloading one shard into the cache, by one process of the node, in a background thread or
inline."""

import logging
import os
import threading
import time
from dataclasses import dataclass

from data.cache.downloads.shard_download import (
    Download,
    DownloadContext,
    NoRoomError,
    WrongPeerBytesError,
)
from data.cache.files.cache_entry import DAMAGED, CacheEntry, ShardRef
from data.cache.files.file_locks import FileLock
from data.cache.files.shard_quarantine import move_to_quarantine
from data.errors import DamagedShardError, DataError, FetchError, ObjectChangedError
from data.source.address import Address, masked
from data.source.protocol import ObjectVersion, short_tag

_log = logging.getLogger(__name__)

_TURN_S = 0.1  # while waiting for a turn: how often to look for the finished shard
POLL_S = 0.02  # how often another process's download is checked
_LATE_POLL_S = 0.1  # how often a download of this process is, by those that have waited long
_LONG_S = 0.25
_NOTHING = float("inf")


class DownloadJob:
    """A job that downloads one shard, or waits for the process that does and takes over if that one
    dies.

    `origin` and `entry` are known once the source has answered. At the end `done` is set, with
    `error` if the download failed and `bypass` if the cache has no room for the shard.
    """

    def __init__(self, context: DownloadContext, ref: ShardRef, when_s: float) -> None:
        self.ref, self.pid = ref, os.getpid()
        self.origin: ObjectVersion | None = None
        self.entry: CacheEntry | None = None
        self.error: BaseException | None = None
        self.bypass = False
        self.got_wrong_bytes = False
        """Whether wrong bytes have arrived, even if they have been fetched again since."""
        self.no_room: str | None = None
        """Why the cache has no room for the shard."""
        self.done = False
        self.asked = False
        """Whether the source has been asked for the object's current version."""
        self.round_trip_s = 0.0
        """Seconds that the source took to answer the first request."""
        self._context, self._when_s = context, when_s
        self._url = masked(ref.url)
        self._arrived = threading.Condition()
        self.have = 0
        """The bytes that this process has downloaded so far, with those that were resumed."""
        self._wanted_end: float = _NOTHING
        """The least end that a waiting reader needs."""

    @property
    def gets_wanted(self) -> bool:
        """Whether it downloads the version that a reader which comes now needs."""
        if self.ref.hash is not None or not self.asked:
            return True
        return self.origin is not None and self.ref.tag == short_tag(self.origin.tag) != 0

    def run(self) -> None:
        """Run the whole download in this thread."""
        try:
            self._run()
        except OSError as error:
            self._context.failures.note(error)
            self.bypass = True
        except BaseException as error:  # noqa: BLE001 (raised again by whoever reads the shard)
            self._context.metrics.add(failures=1)
            self.error = error
        with self._arrived:
            self.done = True
            self._arrived.notify_all()
        with self._context.changed:
            self._context.changed.notify_all()

    def wait(self, end: int, seen: int, waited_s: float) -> None:
        """Wait until bytes up to `end` have arrived, or, if they have, until the shard is verified;
        at most for a short time, after which the reader may decide otherwise.

        Args:
            seen: what `have` was when the reader last looked at the file.
            waited_s: seconds that the reader has waited for so far.
        """
        if self.pid != os.getpid():  # its threads and locks are the parent's
            time.sleep(POLL_S)
            return
        with self._arrived:
            if self.done or seen < end <= self.have:
                return
            is_own, is_long = self.have > 0, waited_s > _LONG_S
            self._wanted_end = min(self._wanted_end, end if end > self.have else _NOTHING)
            self._arrived.wait(_LATE_POLL_S if is_own and is_long else POLL_S)

    def _run(self) -> None:
        if self._is_whole_already():
            return
        try:
            self._once()
        except ObjectChangedError as error:
            self.got_wrong_bytes = True
            _log.warning("%s; it is fetched again", error)
            self._context.metrics.add(refetches=1)
            self._once()

    def _is_whole_already(self) -> bool:
        """Return whether another download has ended since this shard was looked for, so that the
        source need not be asked."""
        entry = CacheEntry.indexed(self.ref)
        try:
            if entry is None or self._context.folder.open_whole(entry) is None:
                return False
        except OSError:
            return False  # the download meets it again, and knows the version by then
        self.entry = entry
        self._context.metrics.add(hits=1)
        return True

    def _once(self) -> None:
        self.asked, began_s = True, time.monotonic()
        origin = self._context.sources.stat(self.ref.url)
        self.round_trip_s = time.monotonic() - began_s
        self.origin = _checked(origin, self.ref)
        if (self.ref.hash, self.origin.tag) == (None, None):
            _warn_of_unknown_version(self.ref.url)
        size = self.ref.bytes if self.origin.bytes is None else self.origin.bytes
        if size is None:
            raise DataError(
                f"shard {self._url}: its length must be known before it is fetched; make an index"
                " of it first"
            )
        self.entry = CacheEntry.of(self.ref, size, self.origin.tag)
        with self._arrived:  # the version is known, which some readers wait for
            self._arrived.notify_all()
        if size > self._context.budget.bytes:
            self._no_room(
                f"has {size} bytes, more than the {self._context.budget.bytes} bytes of the cache"
            )
            return
        self._download_or_wait(self.entry, self.origin)

    def _download_or_wait(self, entry: CacheEntry, origin: ObjectVersion) -> None:
        """Download the shard, or wait until another process has, so that only one downloads it."""
        folder, since_s = self._context.folder, time.monotonic()
        if folder.open_whole(entry) is not None:
            self._context.metrics.add(hits=1)
            return
        self._context.metrics.add(misses=1)
        watch = DownloadStallWatch(self._context.frozen_s)
        while not self._context.closing.is_set():
            if folder.open_whole(entry) is not None:
                return
            if not self._context.turns.acquire(timeout=_TURN_S):
                continue
            try:
                if self._try_download(entry, origin, since_s):
                    return
            finally:
                self._context.turns.release()
            if watch.is_frozen(folder.part_size(entry), time.monotonic()):
                self._bypass_frozen()
                return
            with self._context.changed:
                self._context.changed.wait(POLL_S)
        raise FetchError(self._url, "not fetched: the store was closed in the meantime")

    def _try_download(self, entry: CacheEntry, origin: ObjectVersion, since_s: float) -> bool:
        """Download if no other process does; returns False if another one holds the lock."""
        folder = self._context.folder
        lock = FileLock.try_acquire(folder.path(entry, "lock"))
        if lock is None:
            return False
        with lock:
            failure = folder.failure(entry, since_s)
            if failure is not None:  # recorded by the process that held the lock until now
                self.got_wrong_bytes = failure.damaged
                kind = DamagedShardError if failure.damaged else FetchError
                raise kind(self._url, failure.problem, failure.attempts)
            self._download_locked(entry, origin)
        return True

    def _download_locked(self, entry: CacheEntry, origin: ObjectVersion) -> None:
        """Download the shard while this process holds its lock, and again if the hash is wrong."""
        folder = self._context.folder
        if folder.open_whole(entry) is not None or folder.recheck(entry):
            return
        self._note_replaced(origin)
        for again in (False, True):
            try:
                found = self._fetched(entry, origin, with_peers=not again)
            except NoRoomError as error:
                self._no_room(str(error))
                return
            if self.ref.hash in (None, found):
                return
            self.got_wrong_bytes = True
            move_to_quarantine(folder, entry, "part")
            self._context.metrics.add(quarantined=1, refetches=not again)
            _log.warning("shard %s has the hash %s instead of %s", self._url, found, self.ref.hash)
        problem = (
            f"was downloaded twice with bytes that differ from the indexed ones (hash {found})"
        )
        folder.note_failure(entry, problem, (), damaged=True)
        raise DamagedShardError(self._url, problem)

    def _fetched(self, entry: CacheEntry, origin: ObjectVersion, *, with_peers: bool) -> str:
        """Download the shard and return its hash. What other nodes have sent wrongly is fetched
        from the source, as an error of theirs and not of the source. Raises as `Download.run`."""
        for asks_peers in (with_peers, False):
            download = Download(
                self._context,
                self.ref,
                entry,
                origin,
                self._when_s,
                self._note_arrived,
                with_peers=asks_peers,
            )
            try:
                return download.run()
            except WrongPeerBytesError as error:
                self._context.folder.discard_part(entry, DAMAGED)
                _log.warning(
                    "shard %s, as other nodes of the job have sent it, %s: it is fetched from its"
                    " source",
                    self._url,
                    error,
                )
        raise AssertionError("without other nodes, no bytes are theirs")

    def _bypass_frozen(self) -> None:
        """Bypass the cache, because the process that downloads the shard makes no progress."""
        if self._context.metrics.add_one("frozen") == 0:
            _log.warning(
                "shard %s is downloaded by a process that has made no progress for %.0f s: it"
                " is read from its source; this is logged once, and the metrics count how often it"
                " happens",
                self._url,
                self._context.frozen_s,
            )
        self.bypass = True

    def _note_replaced(self, origin: ObjectVersion) -> None:
        """Count and report a shard that was replaced or copied since it was indexed, and has no
        hash by which its bytes would be verified."""
        is_known = self.ref.hash is None and self.ref.tag and origin.tag is not None
        if not is_known or self.ref.tag == short_tag(origin.tag):
            return
        if self._context.metrics.add_one("replaced") == 0:
            _log.warning(
                "shard %s: its ETag or time is another one than when it was indexed: it was copied "
                "or replaced since, and without a hash in its index only its headers are compared; "
                "index it again, with `hpckit data index --hash`; this is logged once, and the "
                "metrics count how many shards this applies to",
                self._url,
            )

    def _no_room(self, problem: str) -> None:
        self._context.metrics.add(no_room=1)
        _log.info("shard %s %s and is read from its source", self._url, problem)
        self.no_room, self.bypass = problem, True

    def _note_arrived(self, have: int) -> None:
        """Note that bytes up to `have` have arrived, and wake the readers if one of them needs no
        more. They are not woken for every piece."""
        with self._arrived:
            self.have = have
            if have >= self._wanted_end:
                self._wanted_end = _NOTHING
                self._arrived.notify_all()


@dataclass
class DownloadStallWatch:
    """Watches the size of a file that another process downloads.

    Args:
        frozen_s: seconds without a change after which the download counts as frozen, such as by
            SIGSTOP or by a disk that hangs.
    """

    frozen_s: float
    _size: int | None = None
    _since_s: float | None = None

    def is_frozen(self, size: int | None, now_s: float) -> bool:
        """Return whether the size has not changed for `frozen_s`.

        Args:
            size: bytes that have arrived; None if there is no download.
        """
        if self._since_s is None or size != self._size:
            self._size, self._since_s = size, now_s
        return now_s - self._since_s >= self.frozen_s


_unknown_versions: set[str] = set()  # hosts


def _warn_of_unknown_version(url: str) -> None:
    """Warn once of each host that the cache cannot tell the versions of its objects apart."""
    address = Address.parse(url)
    host = f"{address.scheme}://{address.host}"
    if host not in _unknown_versions:
        _unknown_versions.add(host)
        _log.warning(
            "shard %s: its source tells no versions apart (by ETag or time), and its index has no"
            " hash: if it is replaced by one of the same length, the cache does not notice; index"
            " it with `hpckit data index --hash`",
            masked(url),
        )


def _checked(origin: ObjectVersion, ref: ShardRef) -> ObjectVersion:
    """Return `origin`. Raises FetchError if the object has another length than the manifest
    says."""
    if None not in (ref.bytes, origin.bytes) and ref.bytes != origin.bytes:
        raise FetchError(
            masked(ref.url),
            f"is {origin.bytes} bytes long and its manifest says {ref.bytes}: it was replaced, or "
            "its upload is not complete; index it again",
        )
    return origin


def copy_of_error(error: BaseException) -> BaseException:
    """Return a copy of an error to raise in another thread, with its own traceback."""
    return type(error)(*error.args) if isinstance(error, DataError) else error
