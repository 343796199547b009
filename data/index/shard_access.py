"""Reading shards that are indexed: local files, and URLs through any source."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from data.errors import DataError, ShardError
from data.index.tar.read_window import REMOTE_FAR_BYTES, REMOTE_NEAR_BYTES, ReadWindow
from data.index.tar.tar_walk import Read
from data.source.address import masked
from data.source.protocol import ObjectSource

AHEAD_BYTES = 1 << 20  # the kernel is asked to read ahead so many bytes, where members are small
_CHUNK = 4 << 20


@dataclass(frozen=True)
class ReadableShard:
    """An open shard: its size, its version, and `read(offset, size)`.

    `scan` reads like it, but is made for many small reads at increasing offsets.
    """

    bytes: int
    tag: str | None
    read: Read
    scan: Read


def is_url(shard: str) -> bool:
    """Return whether a shard is read from a source rather than from a local path."""
    return "://" in shard or is_pipe(shard)


def is_pipe(shard: str) -> bool:
    """Return whether a shard is the output of a command: its length is unknown, and nothing is
    beside it."""
    return shard.startswith("pipe:")


def is_plain_url(shard: str) -> bool:
    """Return whether other objects may be beside a shard at a URL."""
    return is_url(shard) and not is_pipe(shard)


def stat(shard: str, source: ObjectSource | None) -> tuple[int, str | None]:
    """Return the (bytes, tag) of a shard. Raises ShardError."""
    if not is_url(shard):
        try:
            return _of_status(os.stat(shard))  # noqa: PTH116 (half the time of Path.stat)
        except OSError as error:
            raise ShardError(Path(shard), 0, f"cannot be read: {error.strerror}") from error
    try:
        origin = needed(source, shard).stat(shard)
    except OSError as error:
        raise ShardError(shard, 0, f"cannot be read: {error}") from error
    return _length(shard, origin.bytes), origin.tag


@contextmanager
def opened(shard: str, source: ObjectSource | None) -> Iterator[ReadableShard]:
    """Open a shard. Raises ShardError, also for errors inside the block, and what the source
    raises."""
    try:
        if is_url(shard):
            yield _remote(shard, needed(source, shard))
        else:
            with open(shard, "rb", buffering=0) as file:
                yield _local(file.fileno())
    except OSError as error:
        place = shard if is_url(shard) else Path(shard)
        raise ShardError(place, 0, f"cannot be read: {error.strerror or error}") from error


def through(size: int, read: Read) -> ReadableShard:
    """Return a shard of `size` bytes, of unknown version, that is read through `read`."""
    return ReadableShard(
        size, None, read, ReadWindow(read, size, REMOTE_NEAR_BYTES, REMOTE_FAR_BYTES)
    )


def hash_of(read: Read, size: int, passed: Callable[[bytes], object] | None = None) -> str:
    """Return the BLAKE3 (hex) of all bytes; `passed` is called with them, too."""
    digest = blake3()
    offset = 0
    while offset < size and (chunk := read(offset, min(_CHUNK, size - offset))):
        digest.update(chunk)
        if passed is not None:
            passed(chunk)
        offset += len(chunk)
    return digest.hexdigest()


def _of_status(status: os.stat_result) -> tuple[int, str]:
    return status.st_size, f"{status.st_mtime_ns}-{status.st_size}"


def needed(source: ObjectSource | None, shard: str) -> ObjectSource:
    """Return the source of a URL. Raises DataError if none was given."""
    if source is None:
        raise DataError(f"{masked(shard)} is a URL, and no source was given to read it from")
    return source


def _local(fd: int) -> ReadableShard:
    size, tag = _of_status(os.fstat(fd))
    advised = 0

    def read(offset: int, length: int) -> bytes:
        block = os.pread(fd, length, offset)
        while len(block) < length and (
            more := os.pread(fd, length - len(block), offset + len(block))
        ):
            block += more  # one call returns at most 2 GiB
        return block

    def scan(offset: int, length: int) -> bytes:
        """Read, and have the kernel read ahead: it detects no sequence in headers that are 10 KB
        apart."""
        nonlocal advised
        if offset >= advised:
            if offset - advised < AHEAD_BYTES:
                os.posix_fadvise(fd, offset, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            advised = offset + AHEAD_BYTES
        return os.pread(fd, length, offset)

    return ReadableShard(size, tag, read, scan)


def _remote(url: str, source: ObjectSource) -> ReadableShard:
    origin = source.stat(url)
    length = _length(url, origin.bytes)

    def read(offset: int, size: int) -> bytes:
        return source.read(url, offset, size, origin.tag)

    window = ReadWindow(read, length, REMOTE_NEAR_BYTES, REMOTE_FAR_BYTES)
    return ReadableShard(length, origin.tag, read, window)


def _length(url: str, length: int | None) -> int:
    if length is None:
        raise DataError(f"{masked(url)}: its length is not known before its end; fetch it first")
    return length
