"""Reusable memory in which the parts of a file are put together before they are written."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from checkpointing.storage.lazy_parts import LazyPart, Part, part_size

# bytes: what O_DIRECT asks of addresses, lengths and offsets on local disks, or more
ALIGNMENT = max(4096, mmap.PAGESIZE)
_WRITE = 1 << 20  # bytes that are put together and written at a time, in the processor's cache
_KEPT = 4  # buffers that are kept for the next files
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class WriteBuffer:
    """Memory of one thread that writes a file. It grows with the largest part that it has had."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def blocks(self, parts: Sequence[Part]) -> Iterator[memoryview]:
        """Yield the parts, end to end, in blocks that start at a multiple of `ALIGNMENT`, in memory
        as in the file. All but the last one have a multiple of it as their length. The next block
        takes the memory of the one before."""
        self._reserve(_largest(parts))
        filled = 0
        for part in parts:
            for piece in _pieces(part):
                size = part_size(piece)
                into = self._memory[filled : filled + size]
                if isinstance(piece, LazyPart):
                    piece.fill(into)
                else:
                    into[:] = piece
                filled += size
                if filled >= _WRITE:
                    end = filled // ALIGNMENT * ALIGNMENT
                    yield self._memory[:end]
                    self._memory[: filled - end] = self._memory[end:filled]
                    filled -= end
        if filled:
            yield self._memory[:filled]

    def views(self, parts: Sequence[Part]) -> Iterator[list[memoryview]]:
        """Yield the parts that are not empty in lists of about the same size. A part that is not
        made yet is made in this memory, which the next list uses again; the others stay where they
        are."""
        if lazy := _largest(parts):
            self._reserve(lazy)
        views: list[memoryview] = []
        size = filled = 0
        for part in parts:
            if isinstance(part, LazyPart):
                view = self._memory[filled : filled + part.nbytes]
                part.fill(view)
                filled += part.nbytes
            else:
                view = memoryview(part).cast("B")
            if not len(view):
                continue
            views.append(view)
            size += len(view)
            if size >= _WRITE:
                yield views
                views, size, filled = [], 0, 0
        if views:
            yield views

    def _reserve(self, part: int) -> None:
        """Have memory for less than a whole block, and a part of so many bytes."""
        size = _WRITE + max(part, _WRITE)
        if len(self._memory) < size:
            self._memory = memoryview(mmap.mmap(-1, size, flags=_PRIVATE))


class WriteBufferPool:
    """Keeps the buffers of threads that write for the next ones. Thread-safe."""

    def __init__(self) -> None:
        self._free: list[WriteBuffer] = []
        self._lock = threading.Lock()

    @contextmanager
    def taken(self) -> Iterator[WriteBuffer]:
        """Lend a buffer for the duration of the block."""
        with self._lock:
            buffer = self._free.pop() if self._free else WriteBuffer()
        try:
            yield buffer
        finally:
            with self._lock:
                if len(self._free) < _KEPT:
                    self._free.append(buffer)


def _largest(parts: Sequence[Part]) -> int:
    """Return the bytes of the largest part that is not made yet."""
    return max((part.nbytes for part in parts if isinstance(part, LazyPart)), default=0)


def _pieces(part: Part) -> Iterator[Part]:
    """Yield a part that is in memory in pieces of at most the size that is written at a time."""
    if isinstance(part, LazyPart):
        yield part
        return
    view = memoryview(part).cast("B")
    for start in range(0, len(view), _WRITE):
        yield view[start : start + _WRITE]
