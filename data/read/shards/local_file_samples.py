"""Reading samples of a shard that is a whole file on this machine, in as few steps as possible.

The file is never mapped: if another process truncated it, the kernel would kill this process.
"""

from collections.abc import Callable
from os import pread
from typing import Any, TypeAlias
from zlib import crc32

from data.cache.files.file_handle import FileHandle
from data.index.shard.shard_index import ShardIndex
from data.index.tar.tar_header import BLOCK

# {"__key__": str, "__url__": path or URL of the shard, extension: bytes, ...}
Sample: TypeAlias = dict[str, Any]
Direct: TypeAlias = Callable[[int], tuple[Sample, int]]
Keys: TypeAlias = Callable[[int], str]

WHOLE_BYTES = 32 << 10
"""The bytes up to which a sample is read together with its headers and then cut up, as copying them
costs less than a call. A larger sample's members are read one by one."""


def keys_of(index: ShardIndex) -> Keys:
    """Return a function that gives the key of a sample; if all keys are ASCII, without decoding
    each."""
    at, keys = index.columns["key_at"].data, index.columns["keys"].tobytes()
    if keys.isascii():
        text = keys.decode("ascii")
        return lambda i: text[at[i] : at[i + 1]]
    return lambda i: keys[at[i] : at[i + 1]].decode("utf-8", "surrogateescape")


def direct_reader(
    index: ShardIndex, key_of: Keys, url: str, file: FileHandle, otherwise: Direct
) -> Direct:
    """Return a function that reads sample i and returns it with the bytes of its members, each
    compared with its header.

    On an error, `otherwise` reads the sample. The file stays open as long as the function exists.
    """
    columns, names, fd = index.columns, index.extensions, file.fd
    # a memoryview gives a plain integer, several times as fast as numpy
    firsts, offsets, sizes = (columns[name].data for name in ("first", "offset", "size"))
    headers, extensions = columns["header"].data, columns["extension"].data

    def by_member(i: int) -> tuple[Sample, int]:
        sample: Sample = {"__key__": key_of(i), "__url__": url}
        total = 0
        for member in range(firsts[i], firsts[i + 1]):
            at, length = offsets[member], sizes[member]
            head, content = pread(fd, BLOCK, at - BLOCK), pread(fd, length, at)
            if crc32(head) != headers[member] or len(content) != length:
                return otherwise(i)
            sample[names[extensions[member]]] = content
            total += length
        return sample, total

    def whole_sample(i: int, _: FileHandle = file) -> tuple[Sample, int]:
        first, end = firsts[i], firsts[i + 1]
        begin = offsets[first] - BLOCK
        size = offsets[end - 1] + sizes[end - 1] - begin
        try:
            if size > WHOLE_BYTES:
                return by_member(i)
            block = pread(fd, size, begin)
        except OSError:  # the shard reports it, and tries to repair it
            return otherwise(i)
        if len(block) != size or crc32(block[:BLOCK]) != headers[first]:
            return otherwise(i)
        if end - first == 1:
            content = block[BLOCK:]
            return {"__key__": key_of(i), "__url__": url, names[extensions[first]]: content}, (
                size - BLOCK
            )
        sample: Sample = {"__key__": key_of(i), "__url__": url}
        total = 0
        for member in range(first, end):
            at, length = offsets[member] - begin, sizes[member]
            if crc32(block[at - BLOCK : at]) != headers[member]:
                return otherwise(i)
            sample[names[extensions[member]]] = block[at : at + length]
            total += length
        return sample, total

    def single_member(i: int, _: FileHandle = file) -> tuple[Sample, int]:
        """Read sample i as `whole_sample` does, where each sample has one member: number i."""
        length = sizes[i]
        size = length + BLOCK
        if size > WHOLE_BYTES:
            return whole_sample(i)
        try:
            block = pread(fd, size, offsets[i] - BLOCK)
        except OSError:
            return otherwise(i)
        if len(block) != size or crc32(block[:BLOCK]) != headers[i]:
            return otherwise(i)
        content = block[BLOCK:]
        return {"__key__": key_of(i), "__url__": url, names[extensions[i]]: content}, length

    # all have a member, so where there are as many members as samples, each has one
    return single_member if len(sizes) == len(index) else whole_sample
