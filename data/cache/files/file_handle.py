"""A file that stays open for as long as anybody reads from it."""

import os
import stat

from data.source.file import read_at


class FileHandle:
    """Owns the descriptor `fd`, closed with the last reference: a thread that still reads has one.

    Raises OSError where the disk fails.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    @property
    def mode(self) -> int:
        """Its permission bits: see `entry`."""
        return stat.S_IMODE(os.fstat(self.fd).st_mode)

    def read(self, start: int, size: int) -> bytes:
        """Bytes [start, start + size), fewer only where it ends."""
        return read_at(self.fd, start, size)
