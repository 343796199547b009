"""Memory for content that is kept until everything else is read and checked as well."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np

PAGE = 4096  # bytes
HUGE = 2 << 20  # bytes of a huge page of x86-64, and of arm64 with pages of 4 KiB
LINE = 64  # bytes of a line of the processor's cache
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class KeptMemory:
    """New memory that is handed out from its beginning on, in huge pages if the kernel has them:
    memory of that kind is filled in a third of the time. It is returned to the system, and not to
    the allocator, with the last view of it. Not thread-safe."""

    def __init__(self, size: int) -> None:
        """
        Args:
            size: bytes that are needed in all; the system allocates them when they are written to.
        """
        held = mmap.mmap(-1, size + HUGE, flags=_PRIVATE)
        with suppress(OSError):  # of a kernel without huge pages
            held.madvise(mmap.MADV_HUGEPAGE)
        start = -np.frombuffer(held, np.uint8).__array_interface__["data"][0] % HUGE
        self._view, self._taken = memoryview(held)[start:], 0

    def take(self, size: int, in_page: int | None = None) -> memoryview:
        """Returns memory with undefined content.

        Args:
            in_page: the place in a page at which it begins. None: right after what was taken last.

        Raises:
            ValueError: there is not so much left.
        """
        at = self._taken
        if in_page is not None:
            at += (in_page - at) % PAGE
        self._taken = at + size
        if self._taken > len(self._view):
            raise ValueError(f"there are no {size} bytes left of {len(self._view)}")
        return self._view[at : self._taken]


def round_up(size: int) -> int:
    """Returns the bytes of whole lines for `size` bytes, so that what is taken after them begins
    with a line."""
    return -(-size // LINE) * LINE
