"""The download of one shard into the cache, resumed where an earlier one stopped.

The order of steps keeps the invariants on which the readers of all processes rely: a part grows
only while its lock is held; it is marked whole only after its hash was checked; only then does it
get the name of a shard.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from data.cache.cache_metrics import CacheMetrics
from data.cache.files import shard_record
from data.cache.files.cache_entry import DAMAGED, DROPPED, CacheEntry, ShardRef
from data.cache.files.cache_folder import CacheFolder, hash_upto
from data.cache.files.disk_failures import DiskFailures
from data.cache.files.shard_record import CachedShardRecord
from data.cache.space import space_reservation
from data.cache.space.space_reservation import CacheBudget
from data.errors import FetchError, ObjectChangedError
from data.source.address import masked
from data.source.protocol import ObjectVersion
from data.source.sources import Sources

if TYPE_CHECKING:  # of checkpointing, which is imported only if nodes share their caches
    from data.cache.peers.peer_client import PeerClient
    from data.cache.peers.peer_transfer import PeerTransfer


@dataclass(frozen=True)
class DownloadContext:
    """The shared state of the downloads of one node store, in one process."""

    folder: CacheFolder
    sources: Sources
    budget: CacheBudget
    metrics: CacheMetrics
    failures: DiskFailures
    changed: threading.Condition
    """The condition that the end of every download in this process notifies."""

    turns: threading.Semaphore
    """The semaphore that limits simultaneous downloads."""

    closing: threading.Event
    frozen_s: float
    """Seconds without a new byte after which another process's download is not waited for."""

    peers: "PeerClient | None" = None
    """Access to the caches of the other nodes of the job."""


class NoRoomError(Exception):
    """The cache has no room for a shard; the text says why."""


class WrongPeerBytesError(Exception):
    """The bytes that came from another node are wrong; the text says how."""


class Download:
    """The download of `entry` by the process that holds its lock. `step` is called with the end of
    the bytes that have arrived, as they do.

    Args:
        with_peers: whether other nodes of the job are asked before the source.
    """

    def __init__(
        self,
        context: DownloadContext,
        ref: ShardRef,
        entry: CacheEntry,
        origin: ObjectVersion,
        when_s: float,
        step: Callable[[int], None],
        *,
        with_peers: bool = True,
    ) -> None:
        self._context, self._hash = context, ref.hash
        self._url, self._shown = ref.url, masked(ref.url)
        self._entry, self._origin = entry, origin
        self._when_s, self._step = when_s, step
        self._with_peers = with_peers

    def run(self) -> str:
        """Download and return the hash; publishes the shard if the hash is right or none is known.

        Raises NoRoomError, WrongPeerBytesError, FetchError, ObjectChangedError; OSError of the
        disk.
        """
        folder, entry = self._context.folder, self._entry
        known = self._origin.tag is not None or self._hash is not None
        folder.keep_part(entry, self._origin.tag, known)
        fd = space_reservation.allocate(
            folder, self._context.budget, entry, self._when_s, self._context.metrics
        )
        if fd is None:
            raise NoRoomError("does not fit in the cache")
        try:
            return self._fill(fd)
        except ObjectChangedError:
            folder.discard_part(entry, DAMAGED)
            raise
        except FetchError as error:
            folder.note_failure(entry, error.problem, error.attempts)
            raise
        except OSError as error:
            folder.discard_part(entry, DROPPED)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._context.failures.note(error)
            raise NoRoomError("cannot be cached, because the disk is full") from error
        finally:
            os.close(fd)

    def _fill(self, fd: int) -> str:
        folder, entry = self._context.folder, self._entry
        have = os.fstat(fd).st_size
        started = CachedShardRecord(self._shown, self._origin.tag, shard_record.boot())
        transfer, is_whole = self._transfer(), False
        # without a hash in the index, bytes of other nodes are verified at the end alone, so no
        # later download resumes them: it finds no tag
        is_resumable = transfer is None or self._hash is not None
        self._record(started if is_resumable else replace(started, tag=None))
        hasher = hash_upto(fd, have)
        self._context.metrics.add(downloads=1, bytes_resumed=have)
        try:
            if have < entry.bytes:
                have = self._stream(fd, have, hasher.update, transfer, started)
            if have != entry.bytes:
                raise FetchError(self._shown, f"ended after {have} of its {entry.bytes} bytes")
            found: str = hasher.hexdigest()
            if transfer is not None and transfer.bytes:
                self._check_peer(fd, transfer, found)
            is_whole = self._hash in (None, found)
            if is_whole:
                folder.finish(entry, fd, started.whole(found))
            else:
                os.fchmod(fd, DAMAGED)
            return found
        finally:
            if transfer is not None:
                transfer.settle(is_whole=is_whole)

    def _transfer(self) -> "PeerTransfer | None":
        """Return the access to this shard in other caches; None where the version is not known, so
        that theirs may be another one."""
        peers, is_known = self._context.peers, (self._hash, self._origin.tag) != (None, None)
        if peers is None or not self._with_peers or not is_known:
            return None
        from data.cache.peers.peer_transfer import PeerTransfer

        return PeerTransfer(peers, self._entry, self._context.metrics)

    def _check_peer(self, fd: int, transfer: "PeerTransfer", found: str) -> None:
        """Raise WrongPeerBytesError if the shard, of which bytes came from other nodes, has not the
        hash that it should have, or else the one that the sender has recorded."""
        wanted = self._hash or transfer.hash
        if wanted not in (None, found):
            os.fchmod(fd, DAMAGED)
            transfer.report_wrong()
            raise WrongPeerBytesError(f"has the hash {found} instead of {wanted}")

    def _record(self, record: CachedShardRecord) -> None:
        shard_record.write(self._context.folder.path(self._entry, "json"), record)

    def _stream(
        self,
        fd: int,
        have: int,
        seen: Callable[[bytes], object],
        transfer: "PeerTransfer | None",
        started: CachedShardRecord,
    ) -> int:
        """Write what other nodes and then the source send from byte `have` on; returns the end."""
        size = self._entry.bytes
        self._step(have)
        for piece in self._pieces(have, transfer, started):
            if have + len(piece) > size:
                raise FetchError(self._shown, f"has more than the stated {size} bytes")
            _write(fd, piece, have)
            seen(piece)
            have += len(piece)
            self._step(have)
            if self._context.closing.is_set():
                raise FetchError(self._shown, "not fetched: the store was closed in the meantime")
        return have

    def _pieces(
        self, have: int, transfer: "PeerTransfer | None", started: CachedShardRecord
    ) -> Iterator[bytes]:
        if transfer is not None:
            for piece in transfer.pieces(have):
                have += len(piece)
                yield piece
                if have == self._entry.bytes and self._hash is not None:
                    break  # the sender's verification need not be waited for
            if transfer.bytes and (self._hash, transfer.hash) == (None, None):
                raise WrongPeerBytesError("came without the hash by which it would be verified")
            if have == self._entry.bytes:
                return
            if not transfer.bytes:
                self._record(started)  # what the source sends may be resumed
        size = self._origin.bytes
        for piece in self._context.sources.stream(self._url, have, self._origin.tag, size):
            self._context.metrics.add(bytes_fetched=len(piece))
            have += len(piece)
            yield piece
            if have == self._origin.bytes:
                break  # errors from here on do not matter


def _write(fd: int, piece: bytes, at: int) -> None:
    view = memoryview(piece)
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done
