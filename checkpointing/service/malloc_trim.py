"""Memory that is freed goes back to the system: where a node is short of it."""

from __future__ import annotations

import ctypes
import functools
import logging

logger = logging.getLogger("checkpointing")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGE = 128 << 10  # bytes: what is larger has a mapping of its own, which ends with it


@functools.cache
def limit_malloc_thresholds() -> None:
    """Keep the C library from raising that limit with each large block that is freed, up to 32 MiB:
    the memory of many threads, each with gaps in it, would never be given back. A second time
    does nothing."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        logger.warning("this C library keeps freed memory: the service takes more than it needs")
        return
    for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        if not library.mallopt(option, _LARGE):
            logger.warning("mallopt(%d, %d) is refused", option, _LARGE)
