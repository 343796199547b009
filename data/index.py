"""Where each sample of a shard lies: reading tar headers into a ShardIndex."""

import logging
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from blake3 import blake3

from data.errors import ShardError
from data.naming import RESERVED_EXTENSIONS, split_name

BLOCK = 512  # bytes of a tar header; it lies directly before the member's bytes
_CHUNK = 1 << 20

_log = logging.getLogger(__name__)


class Member(NamedTuple):
    """One file of a sample: its bytes are [offset, offset + size) of the shard.

    `header` is the CRC-32 of its tar header, so that a read can tell a stale index.
    """

    offset: int
    size: int
    header: int


@dataclass(frozen=True)
class SampleEntry:
    """A sample's key and its members by extension, in the order of the tar."""

    key: str
    members: Mapping[str, Member]


@dataclass(frozen=True)
class ShardIndex:
    """The samples of the shard at `path`, in order.

    `bytes` and `mtime_ns` are the file's when it was indexed; `blake3` is the hex hash of the
    whole file, or None if it was not read whole.
    """

    path: Path
    bytes: int
    mtime_ns: int
    blake3: str | None
    samples: tuple[SampleEntry, ...]


def index_shard(path: Path, *, digest: bool = False) -> ShardIndex:
    """Index an uncompressed tar (ustar, pax or GNU) by its headers.

    Consecutive members with the same webdataset key form a sample; links, devices, metadata and
    names without an extension are passed over, as webdataset does. `digest` reads the whole file
    for its hash. Raises ShardError for a file that is missing, no tar, truncated or broken, and
    for a key or an extension that occurs twice.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            samples = _group(_members(file, path, status.st_size), path)
            whole = _digest(file) if digest else None
    except OSError as error:
        raise ShardError(path, 0, f"cannot be read: {error.strerror}") from error
    return ShardIndex(path, status.st_size, status.st_mtime_ns, whole, samples)


def _digest(file: BinaryIO) -> str:
    file.seek(0)
    digest = blake3()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _group(members: Iterator[tuple[str, Member]], path: Path) -> tuple[SampleEntry, ...]:
    """Group members into samples by webdataset's rule."""
    samples: dict[str, dict[str, Member]] = {}
    current: str | None = None
    for name, member in members:
        split = split_name(name)
        if split is None:
            continue
        key, extension = split
        if key != current and key in samples:
            problem = f"{name!r} comes back to key {key!r} after other samples; sort the tar"
            raise ShardError(path, member.offset - BLOCK, problem)
        if extension in RESERVED_EXTENSIONS or extension in samples.get(key, ()):
            problem = f"{name!r}: extension {extension!r} is reserved or occurs twice in its sample"
            raise ShardError(path, member.offset - BLOCK, problem)
        samples.setdefault(key, {})[extension] = member
        current = key
    return tuple(SampleEntry(key, found) for key, found in samples.items())


def _members(file: BinaryIO, path: Path, size: int) -> Iterator[tuple[str, Member]]:
    """Yield (name, member) of each regular file; the tar must be whole to its end."""
    offset = 0
    try:
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar:
            while (info := tar.next()) is not None:
                if info.size < 0:  # would send tarfile back and forth for ever (CVE-2025-8194)
                    raise ShardError(path, info.offset, "broken tar header (negative size)")
                offset = tar.offset
                if info.isreg():
                    yield info.name, _member(file, path, size, info)
                tar.members.clear()  # type: ignore[attr-defined]  # else it keeps every header
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise ShardError(path, offset, f"{_no_tar(offset)}: {error}") from error
    _check_end(file, path, offset)


def _no_tar(offset: int) -> str:
    if offset:
        return "the tar is broken or cut short here"
    return "not a tar file (compressed tars have no random access; decompress them first)"


def _member(file: BinaryIO, path: Path, size: int, info: tarfile.TarInfo) -> Member:
    end = info.offset_data + info.size
    if end > size:
        problem = f"cut short: {info.name!r} ends at byte {end}, the file at {size}; fetch it again"
        raise ShardError(path, info.offset, problem)
    if info.issparse():
        raise ShardError(path, info.offset, f"{info.name!r} is sparse; repack without --sparse")
    header = os.pread(file.fileno(), BLOCK, info.offset_data - BLOCK)
    return Member(info.offset_data, info.size, zlib.crc32(header))


def _check_end(file: BinaryIO, path: Path, offset: int) -> None:
    """Nothing but zeros may follow the last member: tarfile ends silently at a broken header."""
    if file.seek(0, os.SEEK_END) == offset:
        _log.warning("%s: no end-of-archive mark at %d; it may be cut short", path, offset)
    file.seek(offset)
    while chunk := file.read(_CHUNK):
        if chunk.count(0) != len(chunk):
            at = offset + len(chunk) - len(chunk.lstrip(b"\0"))
            raise ShardError(path, at - at % BLOCK, "broken tar header, or data after the end")
        offset += len(chunk)
