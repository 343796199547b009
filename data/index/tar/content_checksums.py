"""Checksums of the content of members, by which a read can detect that a disk returned other
bytes."""

from array import array
from collections import deque
from collections.abc import Iterable

import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest

from data.index.column_container import Column

LOW = 0xFFFFFFFF
_UNSIGNED = np.dtype("<u4")


def content_sum(content: bytes | memoryview) -> int:
    """Return the low 32 bits of the XXH3-64 (Collet, github.com/Cyan4973/xxHash). It protects
    against damage, not against manipulation."""
    return xxh3_64_intdigest(content) & LOW


class ContentSums:
    """Computes the checksums of a tar's members from its stream of bytes.

    Members are given in their order in the tar, each before the bytes after it are fed.
    """

    def __init__(self, members: Iterable[tuple[int, int]] = ()) -> None:
        self._members = deque(members)
        self._sums = array("L")
        self._begun = xxh3_64()  # of the first member left, of which only a part has been fed
        self._bytes = 0

    def expect(self, offset: int, size: int) -> None:
        """Declare that the next member holds the bytes [offset, offset + size)."""
        self._members.append((offset, size))

    def feed(self, chunk: bytes | memoryview) -> None:
        """Add the next bytes of the tar."""
        view, start = memoryview(chunk), self._bytes
        self._bytes = end = start + len(view)
        while self._members:
            offset, size = self._members[0]
            last = offset + size
            if offset >= start and last <= end:
                self._sums.append(content_sum(view[offset - start : last - start]))
            else:
                if offset < end:
                    self._begun.update(view[max(0, offset - start) : last - start])
                if last > end:
                    return
                self._sums.append(self._begun.intdigest() & LOW)
                self._begun.reset()
            self._members.popleft()

    def column(self) -> Column:
        """Return the checksums of all complete members, in their order."""
        return np.array(self._sums, _UNSIGNED)
