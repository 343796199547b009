"""The cache's folder as a store uses it: what fails is counted, and reads go past it."""

import logging
from collections.abc import Mapping

from data.cache.cache_metrics import CacheMetrics
from data.cache.downloads import shard_quarantine
from data.cache.files.cache_entry import CacheEntry, ShardRef, url_key
from data.cache.files.cache_folder import CacheFolder
from data.cache.files.disk_failures import DiskFailures
from data.cache.files.file_handle import FileHandle
from data.cache.space import next_use_plans, space_reservation
from data.source.address import masked

_log = logging.getLogger(__name__)


class CacheDisk:
    """Of one store. Raises no OSError.

    Args:
        allow_shared: whether the folder may be on a file system that machines share.
    """

    def __init__(
        self, folder: CacheFolder, trouble: DiskFailures, metrics: CacheMetrics, allow_shared: bool
    ) -> None:
        self.folder, self.trouble, self.metrics = folder, trouble, metrics
        self._allow_shared = allow_shared
        self._plan = next_use_plans.NextUsePlan(folder.plans)
        self._made = self._told_past = False

    def usable(self) -> bool:
        """Whether to try it now; makes its folder, also after it vanished.

        Raises DataError for a folder that cannot be used safely.
        """
        if self.trouble.pausing:
            return False
        try:
            if not self._made or not self.folder.root.is_dir():
                self.folder.make(self._allow_shared)
                space_reservation.sweep(self.folder)
                self._made = True
        except OSError as error:
            self.trouble.note(error)
            return False
        return True

    def whole(self, ref: ShardRef) -> tuple[FileHandle, CacheEntry] | None:
        """The shard if it is in the cache; can be told without asking its source only where the
        manifest says its hash or its tag."""
        entry = CacheEntry.indexed(ref)
        if entry is None:
            return None
        file, _ = self.open(entry, parts=False)
        return None if file is None else (file, entry)

    def open(self, entry: CacheEntry, *, parts: bool = True) -> tuple[FileHandle | None, bool]:
        """The shard, or else the part if `parts`; and whether it is the shard. None: neither, see
        `trouble`."""
        try:
            file = self.folder.open_whole(entry)
            if file is not None or not parts:
                return file, file is not None
            return self.folder.open_part(entry), False
        except OSError as error:
            self.trouble.note(error)
            return None, False

    def due_s(self, ref: ShardRef) -> float:
        """When the shard is next used by the plans of all jobs; infinite if they say nothing."""
        try:
            return next_use_plans.next_uses(self.folder.plans).get(url_key(ref.url), float("inf"))
        except OSError as error:
            self.trouble.note(error)
            return float("inf")

    def publish(self, uses: Mapping[str, float]) -> None:
        """See `Plan`."""
        try:
            if self.usable():
                self._plan.publish(uses)
        except OSError as error:
            self.trouble.note(error)

    def withdraw(self) -> None:
        self._plan.withdraw()

    def report(self, ref: ShardRef, entry: CacheEntry, file: FileHandle, reason: str) -> None:
        """`file`, the shard of `entry`, is damaged. Raises DamagedShardError; see `quarantine`."""
        self.metrics.add(quarantined=1)
        try:
            shard_quarantine.report(self.folder, entry, file.fd, masked(ref.url), ref.hash, reason)
        except OSError as error:
            self.trouble.note(error)

    def tell_past(self, url: str, problem: str) -> None:
        """Say once that a shard which is read has no place: each read of it asks its source."""
        if not self._told_past:
            self._told_past = True
            _log.warning(
                "shard %s %s (%s): its samples are read from its source, each by a request; this"
                " is said once, see the metrics for how often it happens. A cache should hold all"
                " shards that are read at a time: streams x window of them, of all jobs of a node",
                url,
                problem,
                self.folder.root,
            )

    def forget(self, entry: CacheEntry) -> None:
        """Remove a shard that the disk does not give back."""
        try:
            self.folder.remove(entry)
        except OSError as error:
            self.trouble.note(error)
