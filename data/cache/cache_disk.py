"""The cache folder as a node store uses it: disk failures are counted, and reads then bypass the
cache."""

import logging
from collections.abc import Mapping

from data.cache.cache_metrics import CacheMetrics
from data.cache.files import shard_quarantine
from data.cache.files.cache_entry import CacheEntry, ShardRef, url_key
from data.cache.files.cache_folder import CacheFolder
from data.cache.files.disk_failures import DiskFailures
from data.cache.files.file_handle import FileHandle
from data.cache.space import next_use_plans, space_reservation
from data.source.address import masked

_log = logging.getLogger(__name__)


class CacheDisk:
    """The cache folder of one node store. Its methods raise no OSError.

    Args:
        allow_shared: whether the folder may be on a file system that machines share.
    """

    def __init__(
        self, folder: CacheFolder, failures: DiskFailures, metrics: CacheMetrics, allow_shared: bool
    ) -> None:
        self.folder, self.failures, self.metrics = folder, failures, metrics
        self._allow_shared = allow_shared
        self._plan = next_use_plans.NextUsePlan(folder.plans)
        self._is_created = self._logged_bypass = False

    def usable(self) -> bool:
        """Return whether the cache can be used now. Creates its folder, also after it has vanished.

        Raises DataError for a folder that cannot be used safely.
        """
        if self.failures.is_paused:
            return False
        try:
            if not self._is_created or not self.folder.root.is_dir():
                self.folder.make(self._allow_shared)
                space_reservation.sweep(self.folder)
                self._is_created = True
        except OSError as error:
            self.failures.note(error)
            return False
        return True

    def whole(self, ref: ShardRef) -> tuple[FileHandle, CacheEntry] | None:
        """Return the shard if it is in the cache, else None.

        Without a request to the source this can only be known where the manifest gives the shard's
        hash or tag; otherwise the answer is None.
        """
        entry = CacheEntry.indexed(ref)
        if entry is None:
            return None
        file, _ = self.open(entry, parts=False)
        return None if file is None else (file, entry)

    def open(self, entry: CacheEntry, *, parts: bool = True) -> tuple[FileHandle | None, bool]:
        """Return the open file of the shard, or else (with `parts`) that of its unfinished
        download, and whether it is the whole shard. The file is None if there is neither, or after
        a disk error, which `failures` has noted."""
        try:
            file = self.folder.open_whole(entry)
            if file is not None or not parts:
                return file, file is not None
            return self.folder.open_part(entry), False
        except OSError as error:
            self.failures.note(error)
            return None, False

    def due_s(self, ref: ShardRef) -> float:
        """Return when the shard is next used by the next-use plans of all jobs; infinity if it is
        in none."""
        try:
            return next_use_plans.next_uses(self.folder.plans).get(url_key(ref.url), float("inf"))
        except OSError as error:
            self.failures.note(error)
            return float("inf")

    def publish(self, uses: Mapping[str, float]) -> None:
        """Publish this process's next-use plan; see `NextUsePlan`."""
        try:
            if self.usable():
                self._plan.publish(uses)
        except OSError as error:
            self.failures.note(error)

    def withdraw(self) -> None:
        self._plan.withdraw()

    def report(self, ref: ShardRef, entry: CacheEntry, file: FileHandle, reason: str) -> None:
        """Report that `file`, the shard of `entry`, is damaged. Raises DamagedShardError; see
        `shard_quarantine.report`."""
        self.metrics.add(quarantined=1)
        try:
            shard_quarantine.report(self.folder, entry, file.fd, masked(ref.url), ref.hash, reason)
        except OSError as error:
            self.failures.note(error)

    def log_bypass(self, url: str, problem: str) -> None:
        """Log once that a shard does not fit into the cache, so that each read of it is a request
        to its source."""
        if not self._logged_bypass:
            self._logged_bypass = True
            _log.warning(
                "shard %s %s (%s): its samples are read from its source, by requests of their "
                "own; this is logged once, and the metrics count how often it happens. A cache "
                "should hold all shards that are read at a time: streams x window shards for each "
                "job of a node",
                url,
                problem,
                self.folder.root,
            )

    def forget(self, entry: CacheEntry) -> None:
        """Remove a shard that the disk fails to read back."""
        try:
            self.folder.remove(entry)
        except OSError as error:
            self.failures.note(error)
