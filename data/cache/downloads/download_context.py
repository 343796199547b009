"""The state that all downloads of a node store share."""

import threading
from dataclasses import dataclass

from data.cache.cache_metrics import CacheMetrics
from data.cache.files.cache_folder import CacheFolder
from data.cache.files.disk_failures import DiskFailures
from data.cache.space.space_reservation import CacheBudget
from data.source.sources import Sources


@dataclass(frozen=True)
class DownloadContext:
    """The shared state of the downloads of one node store, in one process."""

    folder: CacheFolder
    sources: Sources
    budget: CacheBudget
    metrics: CacheMetrics
    trouble: DiskFailures
    changed: threading.Condition
    """The condition that every progress of every download in this process notifies."""

    turns: threading.Semaphore
    """The semaphore that limits simultaneous downloads."""

    closing: threading.Event
    frozen_s: float
    """Seconds without a new byte after which another process's download is not waited for."""
