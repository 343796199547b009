"""Reusable memory: one set of buffers per thread."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

_KEEP = 16 << 20  # bytes: a larger buffer, for an unusually large chunk, is not kept


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_name: dict[str, NDArray[np.uint8]] = {}


_buffers = _Buffers()


def thread_buffer(name: str, size: int) -> NDArray[np.uint8]:
    """Returns `size` bytes of this thread's buffer `name`, with undefined content, aligned for any
    word. The next call with the same name returns the same memory."""
    found = _buffers.by_name.get(name)
    if found is None or found.nbytes < size:
        found = np.empty(size, np.uint8)
        if size <= _KEEP:
            _buffers.by_name[name] = found
    return found[:size]
