"""Access to shards that are indexed: local files, and URLs through any source, without a cache."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from blake3 import blake3

from data.errors import DataError, ShardError, shown
from data.errors import is_url as is_url
from data.index.tar.read_window import REMOTE_FAR_BYTES, REMOTE_NEAR_BYTES, ReadWindow
from data.index.tar.tar_walk import Read
from data.source.address import masked
from data.source.file import file_version, read_at, regular_file_version
from data.source.protocol import ObjectSource

AHEAD_BYTES = 1 << 20  # the kernel is asked to read ahead so many bytes, where members are small
_CHUNK = 4 << 20


@dataclass(frozen=True)
class ShardScanInput:
    """What a scan of a shard reads: the shard's size, its version, and functions of (offset,
    size)."""

    bytes: int
    tag: str | None
    read: Read
    scan: Read
    """Reads like `read`, and is made for many small reads at increasing offsets."""


def is_pipe(shard: str) -> bool:
    """Return whether a shard is the output of a command: its length is unknown, and nothing is
    beside it."""
    return shard.startswith("pipe:")


def is_plain_url(shard: str) -> bool:
    """Return whether other objects may be beside a shard at a URL."""
    return is_url(shard) and not is_pipe(shard)


def refuse_at_url(url: str, suffixes: tuple[str, ...], what: str, instead: str) -> None:
    """Raise DataError for a URL of a format that is only read from a file system, by its name."""
    if url.split("?")[0].endswith(suffixes):
        raise DataError(f"{shown(url)}: {what} are only read from a file system; {instead}")


def stat(shard: str, source: ObjectSource | None) -> tuple[int, str | None]:
    """Return the (bytes, tag) of a shard. Raises ShardError."""
    if not is_url(shard):
        try:
            version = regular_file_version(shard)
            return version.bytes or 0, version.tag
        except OSError as error:
            raise ShardError(Path(shard), 0, f"cannot be read: {error.strerror}") from error
    try:
        origin = require_source(source, shard).stat(shard)
    except OSError as error:
        raise ShardError(shard, 0, f"cannot be read: {error}") from error
    return _length(shard, origin.bytes), origin.tag


@contextmanager
def open_scan_input(shard: str, source: ObjectSource | None) -> Iterator[ShardScanInput]:
    """Open a shard to scan it. Raises ShardError, also for errors inside the block, and what the
    source raises."""
    try:
        if is_url(shard):
            yield _remote(shard, require_source(source, shard))
        else:
            regular_file_version(shard)
            with open(shard, "rb", buffering=0) as file:
                yield _local(file.fileno())
    except OSError as error:
        place = shard if is_url(shard) else Path(shard)
        raise ShardError(place, 0, f"cannot be read: {error.strerror or error}") from error


def scan_input(size: int, read: Read) -> ShardScanInput:
    """Return the scan input of a shard of `size` bytes and unknown version, read through `read`."""
    return ShardScanInput(
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


def require_source(source: ObjectSource | None, shard: str) -> ObjectSource:
    """Return the source of a URL. Raises DataError if none was given."""
    if source is None:
        raise DataError(f"{masked(shard)} is a URL, but no source was given to read it from")
    return source


def _local(fd: int) -> ShardScanInput:
    version = file_version(os.fstat(fd))
    advised = 0

    def scan(offset: int, length: int) -> bytes:
        """Read, and have the kernel read ahead: it detects no sequence in headers that are 10 KB
        apart."""
        nonlocal advised
        if offset >= advised:
            if offset - advised < AHEAD_BYTES:
                os.posix_fadvise(fd, offset, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            advised = offset + AHEAD_BYTES
        return os.pread(fd, length, offset)

    return ShardScanInput(version.bytes or 0, version.tag, partial(read_at, fd), scan)


def _remote(url: str, source: ObjectSource) -> ShardScanInput:
    origin = source.stat(url)
    length = _length(url, origin.bytes)

    def read(offset: int, size: int) -> bytes:
        return source.read(url, offset, size, origin.tag)

    window = ReadWindow(read, length, REMOTE_NEAR_BYTES, REMOTE_FAR_BYTES)
    return ShardScanInput(length, origin.tag, read, window)


def _length(url: str, length: int | None) -> int:
    if length is None:
        raise DataError(
            f"{masked(url)}: its length is unknown until it is read completely; fetch it first"
        )
    return length
