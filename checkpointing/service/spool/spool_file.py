"""Writes and reads one snapshot as a file on the node's own disk.

    8 bytes   magic "HPKSPL01"
    u32, u32  version, length of the header
    header    JSON: the snapshot, its layout, and what is known of its run; then
    32 bytes  BLAKE3 of all before it
    ...       the used bytes of its slot
    32 bytes  BLAKE3 of each block of them, in order; then
    32 bytes  BLAKE3 of the header's and all blocks' hashes

Numbers are little-endian. Content is returned only after it was checked.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from checkpointing.errors import DamagedError, FormatError, ServiceError
from checkpointing.service.private_folder import PrivateFiles
from checkpointing.service.protocol.messages import (
    dump_layout,
    dump_snapshot,
    load_layout,
    load_snapshot,
)
from checkpointing.service.snapshots import RankSnapshot
from checkpointing.storage.posix import durable_files as files
from checkpointing.storage.posix.posix_errors import is_no_link
from checkpointing.storage.posix.syscalls import Syscalls

MAGIC = b"HPKSPL01"
VERSION = 1
BLOCK = 4 << 20  # bytes of a block, which has a hash of its own
MAX_HEADER = 256 << 20  # bytes; a larger one is refused before anything is allocated
HASH = 32
_PREFIX = struct.Struct("<8sII")


@dataclass(frozen=True)
class SpoolHeader:
    """What a spool file holds beside the bytes of the slot.

    Attributes:
        owner: the takeover of the run that the snapshot's generation belongs to; None: not known.
        store: uuid of the store; None: it was not reached.
        since: newest step known to be committed when this was written; -1: none.
        slots, slot_bytes: how the memory that the snapshot lay in was divided.
    """

    snapshot: RankSnapshot
    owner: int | None
    store: str | None
    since: int
    slots: int
    slot_bytes: int

    @property
    def bytes(self) -> int:
        """The bytes of the slot that are used."""
        return self.snapshot.layout.end

    @property
    def name(self) -> str:
        """The name of the file."""
        snapshot = self.snapshot
        return f"{snapshot.generation.id}-{snapshot.rank}-{snapshot.step}.snapshot"


@dataclass(frozen=True)
class SpoolFileHeader:
    """The header of a file, after it was checked."""

    spooled: SpoolHeader
    hash: bytes  # hash of the header
    start: int  # offset of the slot's bytes in the file

    @cached_property
    def blocks(self) -> list[tuple[int, int]]:
        """Return where each block begins and ends in the slot."""
        return _blocks(self.spooled.bytes)

    @property
    def size(self) -> int:
        """The size of the whole file in bytes."""
        used = self.spooled.bytes  # may be any number, so the blocks are not listed here
        return self.start + used + HASH * (-(-used // BLOCK) + 1)


def header(spooled: SpoolHeader) -> bytes:
    """Return the content of the file before the slot's bytes.

    Raises:
        ServiceError: what is recorded beside the tensors is too long.
    """
    plain = {
        "snapshot": dump_snapshot(spooled.snapshot),
        "layout": dump_layout(spooled.snapshot.layout),
        "owner": spooled.owner,
        "store": spooled.store,
        "since": spooled.since,
        "slots": spooled.slots,
        "slot_bytes": spooled.slot_bytes,
        "bytes": spooled.bytes,
        "block": BLOCK,
    }
    body = json.dumps(plain, separators=(",", ":")).encode()
    if len(body) > MAX_HEADER:
        raise ServiceError(f"a header of {len(body)} bytes is too long: save fewer plain values")
    head = _PREFIX.pack(MAGIC, VERSION, len(body)) + body
    return head + blake3(head).digest()


def write(path: Path, spooled: SpoolHeader, memory: NDArray[np.uint8], threads: int) -> int:
    """Write a new file durably; return its size in bytes.

    Args:
        memory: the slot of the snapshot, shape (slot_bytes,); must not change meanwhile.
        threads: number of threads that hash while others write.

    Raises:
        OSError: it could not be written; nothing is left behind as far as possible.
        ServiceError: as `header`.
    """
    sys, head = PrivateFiles(), header(spooled)
    used = memory[: spooled.bytes].data
    temporary = f"{path.parent}/.{path.name}.{secrets.token_hex(8)}.tmp"
    try:
        with ThreadPoolExecutor(threads, "spool") as pool:
            views = [used[start:end] for start, end in _blocks(spooled.bytes)]
            hashes = [pool.submit(_hash, view) for view in views]
            size = _write(sys, temporary, head, views, hashes)
        _link(sys, temporary, str(path))
    finally:
        files.discard(sys, temporary)
    files.fsync_dir(sys, str(path.parent))
    return size


@contextmanager
def opened(path: Path) -> Iterator[tuple[int, SpoolFileHeader]]:
    """Open a file; yields its descriptor and its header, which has been checked.

    Raises:
        OSError: it cannot be read, or is a link.
        DamagedError: it is not whole.
        FormatError: it is of another version.
    """
    with files.opened(PrivateFiles(), str(path)) as fd:
        yield fd, _head(fd, path)


def read(fd: int, head: SpoolFileHeader, into: NDArray[np.uint8], threads: int, path: Path) -> None:
    """Copy the slot's bytes from a file, each block checked. After an error the content of `into`
    is undefined.

    Args:
        into: shape (spooled.bytes,).

    Raises:
        OSError: it cannot be read.
        DamagedError: it is not what was written.
    """
    end = head.start + head.spooled.bytes
    hashes = _read(fd, end, HASH * (len(head.blocks) + 1), path)
    if blake3(head.hash + hashes[:-HASH]).digest() != hashes[-HASH:]:
        raise DamagedError(f"{path}: the hashes of its blocks do not match those that were written")

    def check(number: int) -> bool:
        start, stop = head.blocks[number]
        view = into[start:stop].data
        count = files.read_at(PrivateFiles(), fd, head.start + start, view)
        expected = hashes[HASH * number : HASH * (number + 1)]
        return count == stop - start and _hash(view) == expected

    with ThreadPoolExecutor(threads, "spool") as pool:
        damaged = [n for n, good in enumerate(pool.map(check, range(len(head.blocks)))) if not good]
    if damaged:
        raise DamagedError(f"{path}: blocks {damaged[:4]} of {len(head.blocks)} are damaged")


def _head(fd: int, path: Path) -> SpoolFileHeader:
    size = os.fstat(fd).st_size
    prefix = _read(fd, 0, _PREFIX.size, path)
    magic, version, length = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise DamagedError(f"{path} is not a spooled snapshot")
    if version != VERSION:
        raise FormatError(f"{path} is of version {version}, but this hpckit knows {VERSION}")
    if length > min(MAX_HEADER, size):
        raise DamagedError(f"{path}: a header of {length} bytes in a file of {size}")
    body = _read(fd, _PREFIX.size, length + HASH, path)
    stated = body[length:]
    if blake3(prefix + body[:length]).digest() != stated:
        raise DamagedError(f"{path}: its header is damaged")
    head = SpoolFileHeader(_load(body[:length], path), stated, _PREFIX.size + length + HASH)
    if head.size != size:
        raise DamagedError(f"{path} has {size} bytes instead of {head.size}")
    return head


def _load(body: bytes, path: Path) -> SpoolHeader:
    try:
        plain = json.loads(body)
        layout = load_layout(plain["layout"])
        snapshot = load_snapshot(plain["snapshot"], {layout.digest: layout})
        fields = {name: plain[name] for name in ("owner", "store", "since", "slots", "slot_bytes")}
        spooled = SpoolHeader(snapshot, **fields)
        is_one = _fits(spooled) and (plain["bytes"], plain["block"]) == (spooled.bytes, BLOCK)
    except (ValueError, KeyError, TypeError, RecursionError, ServiceError) as error:
        raise DamagedError(f"{path}: its header is not valid: {error!r}") from error
    if not is_one or spooled.name != path.name:
        raise DamagedError(f"{path}: its header belongs to another file")
    return spooled


def _fits(spooled: SpoolHeader) -> bool:
    counts: Sequence[Any] = (spooled.slots, spooled.slot_bytes, spooled.since)
    return (
        all(isinstance(count, int) for count in counts)
        and spooled.slots > 0
        and 0 <= spooled.bytes <= spooled.slot_bytes
        and isinstance(spooled.owner, int | None)
        and isinstance(spooled.store, str | None)
    )


def _blocks(size: int) -> list[tuple[int, int]]:
    return [(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK)]


def _hash(data: memoryview) -> bytes:
    return blake3(data).digest()


def _read(fd: int, start: int, length: int, path: Path) -> bytes:
    data = bytearray(length)
    if files.read_at(PrivateFiles(), fd, start, memoryview(data)) < length:
        raise DamagedError(f"{path} ends before byte {start + length}")
    return bytes(data)


def _write(
    sys: Syscalls,
    path: str,
    head: bytes,
    blocks: Sequence[memoryview],
    hashes: Sequence[Future[bytes]],
) -> int:
    """Write the content of a new file durably; return its size in bytes."""
    fd = sys.create(path)
    try:
        _put(sys, fd, memoryview(head))
        for block in blocks:
            _put(sys, fd, block)
        ends = b"".join(one.result() for one in hashes)
        tail = ends + blake3(head[-HASH:] + ends).digest()
        _put(sys, fd, memoryview(tail))
        sys.fsync(fd)
    except OSError:
        with suppress(OSError):  # the first error is the one to report
            sys.close(fd)
        raise
    sys.close(fd)  # may report an error that fsync did not
    return len(head) + sum(map(len, blocks)) + len(tail)


def _put(sys: Syscalls, fd: int, data: memoryview) -> None:
    while data:
        count = sys.writev(fd, [data])
        if count <= 0:
            raise OSError(errno.EIO, "the file system accepted none of the bytes")
        data = data[count:]


def _link(sys: Syscalls, temporary: str, path: str) -> None:
    try:
        sys.link(temporary, path)
    except OSError as error:
        # A file of that name holds the same snapshot, and may be damaged.
        if not isinstance(error, FileExistsError) and not is_no_link(error):
            raise
        sys.rename(temporary, path)
