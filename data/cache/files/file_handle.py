"""A file that stays open as long as a reader uses it."""

import os
import stat

from data.source.file import read_at


class FileHandle:
    """The owner of the descriptor `fd`, which is closed with the last reference; each reading
    thread has one.

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
        """The permission bits of the file: see `cache_entry`."""
        return stat.S_IMODE(os.fstat(self.fd).st_mode)

    def read(self, start: int, size: int) -> bytes:
        """Read bytes [start, start + size), fewer only at the end of the file."""
        return read_at(self.fd, start, size)
