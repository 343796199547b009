"""Shards in local and mounted file systems."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from data.source.address import Address
from data.source.protocol import (
    FirstTag,
    ObjectVersion,
    PermanentSourceError,
    TransientSourceError,
    check_tag,
)

_PIECE = 4 << 20  # bytes
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR)


class FileSource:
    """A `Backend` of paths and file:// URLs.

    No call has a deadline: on a mount whose server is gone a read waits in the kernel, where not
    even SIGKILL may end it (NFS mounted `hard`, Lustre). If a bound is needed, mount it `soft`, so
    that reads end with an error and are retried, or read the shards by another protocol.
    """

    def stat(self, url: str) -> ObjectVersion:
        with _opened(url) as fd:
            return file_version(os.fstat(fd))

    def read(self, url: str, start: int, size: int, tag: str | FirstTag | None) -> bytes:
        with _opened(url) as fd:
            check_tag(tag, file_version(os.fstat(fd)).tag)
            data = read_at(fd, start, size)
        if len(data) < size:
            raise PermanentSourceError(
                f"it ends at byte {start + len(data)}, before byte {start + size} that is needed"
            )
        return data

    def stream(self, url: str, start: int, tag: str | None) -> Iterator[bytes]:
        with _opened(url) as fd:
            origin = file_version(os.fstat(fd))
            check_tag(tag, origin.tag)
            while piece := os.pread(fd, _PIECE, start):
                start += len(piece)
                yield piece
            if start != origin.bytes:
                raise TransientSourceError(f"it ended at byte {start} of {origin.bytes}")


def read_at(fd: int, start: int, size: int) -> bytes:
    """Read bytes [start, start + size) of an open file; fewer only at its end. Raises OSError."""
    data = os.pread(fd, size, start)
    if len(data) == size or not data:
        return data
    parts = [data]
    have = len(data)
    while have < size and (data := os.pread(fd, size - have, start + have)):
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def file_version(status: os.stat_result) -> ObjectVersion:
    """Return the length and tag of a file of this status."""
    return ObjectVersion(status.st_size, f"{status.st_mtime_ns}-{status.st_size}")


def regular_file_version(path: str) -> ObjectVersion:
    """Return the length and tag of the file at `path`. Raises OSError, also for a folder, a device
    or a named pipe, of which a read may wait forever."""
    status = os.stat(path)  # noqa: PTH116 (half the time of Path.stat)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return file_version(status)


@contextmanager
def _opened(url: str) -> Iterator[int]:
    path = Address.parse(url).local
    if path is None:
        raise PermanentSourceError("not a local file")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
    except OSError as error:
        kind = TransientSourceError if error.errno in _PASSING else PermanentSourceError
        raise kind(error.strerror or str(error)) from error
