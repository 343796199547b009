"""The node store: the cache of shards from any source that all processes of a node share."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from data.cache.cache_disk import CacheDisk
from data.cache.cache_metrics import CacheMetrics
from data.cache.cached_shard import CachedShard, ReadPolicy
from data.cache.downloads.download_job import copy_of_error
from data.cache.downloads.download_jobs import DownloadJobs
from data.cache.downloads.shard_download import DownloadContext
from data.cache.downloads.unverified_reads import UnverifiedReads
from data.cache.files.cache_entry import ShardRef, url_key
from data.cache.files.cache_folder import CacheFolder
from data.cache.files.disk_failures import DiskFailures
from data.cache.files.file_handle import FileHandle
from data.cache.files.filesystem_type import SHARED, kind_of
from data.cache.space.space_reservation import CacheBudget
from data.errors import DataError, FetchError
from data.keyword_options import takes_fields_of
from data.source.address import Address, masked
from data.source.sources import Sources

if TYPE_CHECKING:  # of checkpointing, which is imported only if nodes share their caches
    from data.cache.peers.cache_peers import CachePeers
    from data.cache.peers.peer_client import PeerClient

CacheLocal: TypeAlias = bool | Literal["auto"]

PIPE_WITHOUT_CACHE = (
    "a shard of a pipe: command requires a cache, because it can only be read from its beginning: "
    "give cache=FOLDER and cache_bytes=, or have the command write a file"
)


@dataclass(frozen=True)
class NodeStoreOptions:
    """The options of a `NodeStore`. Raises DataError for an impossible value."""

    budget_bytes: int
    """The most bytes that the cache may hold; 0 for no cache at all. Open shards count and are not
    removed."""
    _: KW_ONLY
    sources: Sources | None = None
    """Access to shards that are not local; None: `Sources()`."""
    free_reserve: int = 1 << 30
    """Bytes of the disk that are left free."""
    cache_local: CacheLocal = False
    """Whether shards that are files are copied too, rather than read in place; "auto": those on
    file systems that machines share, such as NFS and Lustre."""
    read_growing: bool = True
    """Whether bytes of a shard are returned during its download. If its hash is then found to be
    wrong, the next read raises, and so does `check`. False: reads wait until all of it is
    verified."""
    wait_bytes: int = 64 << 20
    """A range is read from the source rather than waited for if the download is this many bytes
    short of it. Some nearer ranges are read like that too, where it is faster: see
    `separate_read_choice`."""
    downloads: int = 16
    """The number of simultaneous downloads; other shards wait, and their samples may be read from
    their source meanwhile."""
    retry_cache_s: float = 30.0
    """Seconds for which a cache whose disk failed is not used."""
    frozen_s: float = 30.0
    """Seconds to wait for another process that makes no progress, because it was stopped or its
    disk hangs: no byte comes of the shard that it downloads, or it does not release the folder's
    lock. Shards are then read from their source."""
    allow_shared: bool = False
    """Whether the folder may be on NFS, Lustre and other shared file systems."""
    peers: "CachePeers | None" = None
    """The caches of the other nodes of the job, from which shards are got before their source; see
    `CachePeers.connect`."""

    def __post_init__(self) -> None:
        if self.budget_bytes < 0 or self.free_reserve < 0 or self.wait_bytes < 0:
            raise DataError("budget_bytes, free_reserve and wait_bytes must not be negative")
        if self.downloads < 1:
            raise DataError(f"downloads must be at least 1, got {self.downloads}")
        if not isinstance(self.cache_local, bool) and self.cache_local != "auto":
            raise DataError(f'cache_local must be True, False or "auto", got {self.cache_local!r}')
        if self.frozen_s <= 0:
            raise DataError(f"frozen_s must be above 0, got {self.frozen_s}")


class NodeStore:
    """A cache of shards on a local disk, through which shards are opened. Thread-safe; any number
    of processes may use one folder at a time.

    Args:
        folder: on a local disk; created if needed, for this user alone.
        options: given as arguments, `NodeStore(folder, budget_bytes, sources=..., ...)`: the fields
            of `NodeStoreOptions`, or by `from_options` as a whole.

    Raises DataError for a folder that cannot be used safely or an invalid option. A disk that fails
    is not an error: shards are then read from their source, see `metrics`.
    """

    @takes_fields_of(NodeStoreOptions)
    def __init__(self, folder: Path, options: NodeStoreOptions) -> None:
        self.sources = options.sources or Sources()
        self._options = replace(options, sources=self.sources)
        self.metrics = CacheMetrics()
        place = CacheFolder(Path(folder).absolute(), options.frozen_s)
        failures = DiskFailures(place.root, self.metrics, options.retry_cache_s)
        self._disk = CacheDisk(place, failures, self.metrics, options.allow_shared)
        self.folder, self.budget_bytes = place.root, options.budget_bytes
        self._cached, self._cache_local = options.budget_bytes > 0, options.cache_local
        self._shared: dict[Path, bool] = {}
        self._unverified = UnverifiedReads()
        client = _client_of(options.peers, place.root) if self._cached else None
        nodes = 1 if client is None else len(client.group.nodes)
        self._read_policy = ReadPolicy(options.read_growing, options.wait_bytes, nodes)
        self._closing = threading.Event()
        make_context = partial(
            DownloadContext,
            place,
            self.sources,
            CacheBudget(options.budget_bytes, options.free_reserve),
            self.metrics,
            failures,
            closing=self._closing,
            frozen_s=options.frozen_s,
            peers=client,
        )
        self._jobs = DownloadJobs(make_context, options.downloads)
        self._usable()

    @classmethod
    def from_options(cls, folder: Path, options: NodeStoreOptions) -> "NodeStore":
        """Return a store with these options. Raises DataError."""
        return cls(folder, **vars(options))

    def __reduce__(self) -> tuple[Callable[..., "NodeStore"], tuple[Path, NodeStoreOptions]]:
        """Pickle as a new store over the same folder, for another process."""
        return NodeStore.from_options, (self.folder, self._options)

    def open(self, ref: ShardRef, *, when_s: float = 0.0) -> CachedShard:
        """Open a shard; returns immediately, while missing bytes are fetched in the background.

        Args:
            when_s: seconds until it is needed: no shard that is needed sooner is evicted for it.
                If it was needed sooner by the plans, that counts: where reads are slower than
                planned, shards that come after it are overdue as well.

        Raises FetchError for a local shard that is missing or has another length, DataError for an
        invalid URL or a closed store; other errors are raised by the read that meets them.
        """
        if self._closing.is_set():
            raise DataError("the store is closed")
        if not self._cached and Address.parse(ref.url).scheme == "pipe":
            raise DataError(PIPE_WITHOUT_CACHE)
        shard = CachedShard(
            ref, self._disk, self._jobs, self.sources, self._read_policy, self._unverified
        )
        if (path := self._in_place(ref.url)) is not None:
            shard.use_file(_open_local(path, ref), None)
            self.metrics.add(hits=1)
        elif not self._usable():
            shard.use_source()
            self.metrics.add(uncached=not self._cached)
        elif (found := self._disk.whole(ref)) is not None:
            shard.use_file(*found)
            self.metrics.add(hits=1)
        else:
            needed_s = time.monotonic() + when_s
            shard.use_job(self._jobs.start(ref, min(needed_s, self._disk.due_s(ref))))
        return shard

    def prefetch(self, ref: ShardRef, *, when_s: float | None = None) -> bool:
        """Fetch the whole shard into the cache now, in this thread.

        Args:
            when_s: seconds until it is needed; by default as the published next-use plans say,
                infinity if it is in none.

        Returns False if the cache has no room for it. Raises FetchError.
        """
        if self.is_in_place(ref.url):
            return True
        if not self._usable():
            return False
        if self._disk.whole(ref) is not None:
            return True
        due_s = self._disk.due_s(ref) if when_s is None else time.monotonic() + when_s
        job = self._jobs.run(ref, due_s)
        if job.error is not None:
            raise copy_of_error(job.error)
        return not job.bypass

    def check(self) -> None:
        """Raise DamagedShardError, once, if this process returned bytes before the hash of their
        shard was checked and they have since proved wrong."""
        self._unverified.check()

    def settle(self) -> None:
        """Do the same as `check` for all bytes returned so far, and wait for the downloads that
        verify them."""
        self._unverified.settle(self._jobs.wait)

    @property
    def verifies_later(self) -> bool:
        """Whether bytes may be returned before they are verified, so that `check` may raise."""
        return self._cached

    @property
    def copies_files(self) -> bool:
        """Whether any shards that are files may be copied into the cache."""
        return self._cached and self._cache_local is not False

    def is_in_place(self, url: str) -> bool:
        """Return whether a shard is a file that is read in place. Raises DataError."""
        return self._in_place(url) is not None

    def publish_plan(
        self, uses: Sequence[tuple[ShardRef | str, float]], *, since_s: float | None = None
    ) -> None:
        """Publish what this process will read: (shard or its URL, seconds until it is read).

        Replaces the plan published before. It counts while this process lives.

        Args:
            since_s: the time from which the seconds count, by the monotonic clock; None: now.
        """
        now_s = time.monotonic() if since_s is None else since_s
        plan: dict[str, float] = {}
        for shard, in_s in uses:
            key = url_key(shard.url if isinstance(shard, ShardRef) else shard)
            plan[key] = min(now_s + in_s, plan.get(key, float("inf")))
        if self._cached:
            self._disk.publish(plan)

    def close(self) -> None:
        """Stop downloads at their next byte and withdraw the plan. Open shards that are whole stay
        readable."""
        self._closing.set()
        self.sources.close()
        self._disk.withdraw()
        self._jobs.wake()

    def __enter__(self) -> "NodeStore":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _usable(self) -> bool:
        return self._cached and self._disk.usable()

    def _in_place(self, url: str) -> Path | None:
        """Return the path of a shard that is read in place."""
        path = Address.parse(url).local
        if path is None or not self.copies_files:
            return path
        return None if self._cache_local is True or self._is_shared(path.parent) else path

    def _is_shared(self, folder: Path) -> bool:
        if folder not in self._shared:
            self._shared[folder] = kind_of(folder) in SHARED
        return self._shared[folder]


def _client_of(peers: "CachePeers | None", folder: Path) -> "PeerClient | None":
    if peers is None:
        return None
    if peers.folder != folder:
        raise DataError(
            f"cache {folder}: the caches of other nodes were connected for {peers.folder}; give "
            "the same folder to both"
        )
    return peers.client


def _open_local(path: Path, ref: ShardRef) -> FileHandle:
    try:
        file = FileHandle(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        size = file.size
    except OSError as error:
        raise FetchError(masked(ref.url), f"cannot be opened: {error.strerror}") from error
    if ref.bytes is not None and size != ref.bytes:
        raise FetchError(
            masked(ref.url),
            f"is {size} bytes long and its manifest says {ref.bytes}: index it again",
        )
    return file
