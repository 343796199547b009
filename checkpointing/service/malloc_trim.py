"""Makes the C library return freed memory to the system, for nodes that are short of it."""

from __future__ import annotations

import ctypes
import functools
import logging

logger = logging.getLogger("checkpointing")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
# bytes: a larger block gets a mapping of its own, which is unmapped when it is freed
_LARGE = 128 << 10


@functools.cache
def limit_malloc_thresholds() -> None:
    """Fix the thresholds of malloc, which the C library otherwise raises with each large block that
    is freed, up to 32 MiB: then the memory of many threads, each with gaps in it, would never be
    returned. A second call does nothing."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        logger.warning("this C library keeps freed memory, so the service takes more than it needs")
        return
    for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        if not library.mallopt(option, _LARGE):
            logger.warning("mallopt(%d, %d) failed", option, _LARGE)
