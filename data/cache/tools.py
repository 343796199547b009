"""What all downloads of a store share."""

import threading
from dataclasses import dataclass

from data.cache.folder import Folder
from data.cache.metrics import Metrics
from data.cache.room import Budget
from data.cache.trouble import Trouble
from data.source.sources import Sources


@dataclass(frozen=True)
class Tools:
    """Of one store, in one process."""

    folder: Folder
    sources: Sources
    budget: Budget
    metrics: Metrics
    trouble: Trouble
    changed: threading.Condition
    """Notified of every step of every download of this process."""

    turns: threading.Semaphore
    """How many more downloads may begin."""

    closing: threading.Event
    frozen_s: float
    """Seconds without a new byte after which another process's download is not waited for."""
