"""Failures of the cache's disk: they are logged, reads bypass the cache, and it is tried again
later."""

import errno
import logging
import time
from pathlib import Path

from data.cache.cache_metrics import CacheMetrics

_log = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFailures:
    """The record of disk failures, which says whether the cache in `root` is paused.

    Args:
        pause_s: how long the cache is not used after an error.
    """

    def __init__(self, root: Path, metrics: CacheMetrics, pause_s: float) -> None:
        self._root, self._metrics, self._pause_s = root, metrics, pause_s
        self._until_s = float("-inf")

    @property
    def is_paused(self) -> bool:
        return time.monotonic() < self._until_s

    def note(self, error: OSError) -> None:
        """Count `error`, log the first one of its kind, and pause the cache.

        A full disk does not pause it, as the next shard may fit.
        """
        name = errno.errorcode.get(error.errno or 0, type(error).__name__)
        if self._metrics.cache_error(name) == 0:
            _log.warning(
                "the cache %s cannot be used (%s: %s): shards are read from their source; this is "
                "logged once, and the metrics count how often it happens",
                self._root,
                name,
                error.strerror,
            )
        if error.errno not in _FULL:
            self._until_s = time.monotonic() + self._pause_s
