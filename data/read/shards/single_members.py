"""Reading small samples of one member each from files of this machine, in as few steps as possible.

What a read needs of a sample lies side by side in an *entry*, and what it needs of a shard in one
tuple: of hundreds of shards that are read in turns, each further object that a read touches is one
more that is no longer in a processor's cache. All samples of a batch are read by one loop.
"""

import weakref
from collections.abc import Sequence
from os import pread
from struct import Struct
from sys import intern
from typing import NamedTuple, TypeAlias

import numpy as np
from xxhash import xxh3_64_intdigest

from data.cache.files.file_handle import FileHandle
from data.index.shard.shard_index import ShardIndex
from data.index.tar.content_checksums import LOW
from data.read.shards.local_file_samples import WHOLE_BYTES, Sample

_ENTRY = Struct("<QIIII")  # offset, size, checksum, where the key begins and ends
_FIELDS = np.dtype(
    [("offset", "<u8"), ("size", "<u4"), ("content", "<u4"), ("key", "<u4"), ("end", "<u4")]
)

# the fields of a `SingleMemberFile`; a plain tuple is taken apart in less time
OpenFile: TypeAlias = tuple[int, bytes, str, str, str, FileHandle]


class SingleMemberFile(NamedTuple):
    """A shard in a file of this machine; each of its samples has one member, all of one name."""

    fd: int
    entries: bytes
    keys: str
    """The keys of all samples, in a row."""
    url: str
    name: str
    """The extension of each member."""
    file: FileHandle
    """What keeps the file open."""


class OpenFiles:
    """The open shards of a reader, by numbers of its own, so that it need not ask each shard again.

    Once any shard of this process closes its file, all are forgotten. A batch that is being read
    keeps its files open until it is done. Threads may share it.
    """

    def __init__(self) -> None:
        self.files: dict[int, OpenFile] = {}
        """Replaced as a whole: who adds to it must have it from before it asked the shard."""
        _all_open_files.append(weakref.ref(self, _all_open_files.remove))


_all_open_files: list[weakref.ref[OpenFiles]] = []  # whose operations are atomic


def forget_open_files() -> None:
    """Have all readers of this process ask shards again."""
    for ref in list(_all_open_files):
        if (one := ref()) is not None:
            one.files = {}


def entry_bytes(index: ShardIndex) -> int:
    """Return the bytes that the entries of a shard take, with the keys; 0: it has none, as its
    samples are large or have several members, or names of several kinds, or no checksums of
    contents."""
    columns, count = index.columns, len(index)
    is_simple = index.has_content_sums and len(columns["size"]) == count
    if not is_simple or len(columns["extension_at"]) != 2 or index.bytes > WHOLE_BYTES * count:
        return 0
    if columns["size"].dtype.itemsize > 4 or columns["key_at"].dtype.itemsize > 4:
        return 0
    return count * _ENTRY.size + len(columns["keys"])


def single_member_file(index: ShardIndex, url: str, file: FileHandle) -> SingleMemberFile | None:
    """Return what `read_single_members` needs of a shard; None if it has no entries."""
    keys, at = index.columns["keys"].tobytes(), index.columns["key_at"].astype(np.int64)
    if not entry_bytes(index) or not keys.isascii():
        return None
    entries = np.empty(len(index), _FIELDS)
    for name in ("offset", "size", "content"):
        entries[name] = index.columns[name]
    entries["key"], entries["end"] = at[:-1], at[1:]
    name = intern(index.extensions[0])  # one for all shards
    return SingleMemberFile(file.fd, entries.tobytes(), keys.decode("ascii"), url, name, file)


def read_single_members(
    files: Sequence[OpenFile], samples: Sequence[int]
) -> tuple[list[Sample | None], int, list[int]]:
    """Return the samples, each compared with its checksum, the bytes of their members, and which of
    them could not be read or are not what was indexed: those are None.

    Args:
        files, samples: the shard of each sample, and its number there.
    """
    found: list[Sample | None] = []
    bad: list[int] = []
    unpack, width, total = _ENTRY.unpack_from, _ENTRY.size, 0
    for (fd, entries, keys, url, name, _), i in zip(files, samples, strict=True):
        offset, size, checksum, key, end = unpack(entries, i * width)
        try:
            content = pread(fd, size, offset)
        except OSError:  # the shard reports it, and tries to repair it
            content = b""
        if xxh3_64_intdigest(content) & LOW != checksum or len(content) != size:
            bad.append(len(found))
            found.append(None)
            continue
        found.append({"__key__": keys[key:end], "__url__": url, name: content})
        total += size
    return found, total, bad
