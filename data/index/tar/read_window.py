"""Small reads served from larger ones, whose size depends on how far apart the reads are."""

from data.index.tar.tar_walk import Read

NEAR_BYTES = 256 * 1024  # one read for many headers, where members are small
FAR_BYTES = 4 * 1024  # one read for one header, where members are large

# For an object store, where a request costs about as much as 1 MiB.
REMOTE_NEAR_BYTES = 2 * 1024 * 1024
REMOTE_FAR_BYTES = 16 * 1024


class ReadWindow:
    """Serves reads at increasing offsets of a file of `size` bytes from a window over it."""

    def __init__(self, read: Read, size: int, near: int = NEAR_BYTES, far: int = FAR_BYTES) -> None:
        self._read = read
        self._size = size
        self._near, self._far = near, far
        self._start = self._end = 0
        self._content = b""

    def __call__(self, offset: int, size: int) -> bytes:
        """Return the bytes [offset, offset + size), fewer at the end of the file."""
        end = offset + size
        if not self._start <= offset or end > self._end:
            self._move(offset, size)
        at = offset - self._start
        return self._content[at : at + size]

    def _move(self, offset: int, size: int) -> None:
        is_near = -self._near <= offset - self._end <= self._near
        length = max(size, self._near if is_near else self._far)
        self._content = self._read(offset, min(length, self._size - offset))
        self._start, self._end = offset, offset + len(self._content)
