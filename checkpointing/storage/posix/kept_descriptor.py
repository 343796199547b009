"""Keeps the descriptor of the file that a thread read last, for a thread that reads files in
order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from checkpointing.storage.posix import durable_files as files
from checkpointing.storage.posix.syscalls import Syscalls


class KeptDescriptor(threading.local):
    """Opens files for reading. Within `keeping`, the calling thread keeps one file open from one
    read to the next, so that the kernel sees one sequence of reads and reads ahead of it."""

    def __init__(self, sys: Syscalls) -> None:
        self._sys = sys
        self._keeps = False
        self._path, self._fd = "", -1  # the file that is kept open; fd -1: none

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep the last file that this thread opens in the block open until the block ends."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False
            self._close()

    @contextmanager
    def opened(self, path: str) -> Iterator[int]:
        """Open a file for reading, for the duration of the block; yields its descriptor. After an
        error in the block the file is not kept, so that the next read opens it again."""
        if not self._keeps:
            with files.opened(self._sys, path) as fd:
                yield fd
            return
        if self._fd < 0 or self._path != path:
            self._close()
            self._path, self._fd = path, self._sys.open(path)
        try:
            yield self._fd
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):  # all that was read from it has arrived
                self._sys.close(fd)
