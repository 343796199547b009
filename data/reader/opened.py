"""A shard that is open: its index and its bytes, made into samples."""

import threading
from os import pread
from typing import Any, TypeAlias
from zlib import crc32

from data.cache.openfile import OpenFile
from data.cache.shard import OpenShard
from data.errors import DamagedShardError, ShardError
from data.indexing.header import BLOCK
from data.indexing.shard import ShardIndex

# {"__key__": str, "__url__": path or URL of the shard, extension: bytes, ...}
Sample: TypeAlias = dict[str, Any]

# A sample of up to so many bytes is read at once, headers and all, and then cut up: a copy of them
# costs less than a call. Above, each member is read into bytes of its own.
_WHOLE_BYTES = 32 << 10
_TODO = "index the dataset again (`hpckit data index`)"


class OpenedShard:
    """Samples of one shard; thread-safe."""

    def __init__(self, index: ShardIndex, shard: OpenShard) -> None:
        self.index = index
        self._shard = shard
        self._url = shard.ref.url
        self._file: OpenFile | None = None  # once all of it lies in a file of this machine
        self._repairs = 0
        self._lock = threading.Lock()
        columns = index.columns
        # a memoryview gives a plain integer, several times as fast as numpy
        self._first = columns["first"].data
        self._offset, self._size = columns["offset"].data, columns["size"].data
        self._header = columns["header"].data
        self._extension = columns["extension"].data
        self._names = index.extensions
        self._keys, self._key_at = columns["keys"].tobytes(), columns["key_at"].data

    def read(self, i: int) -> tuple[Sample, int]:
        """Sample i, each member checked against its header, and how many bytes that are.

        Raises IndexError; ShardError if the shard is not what its index says, FetchError if it
        cannot be had.
        """
        while True:
            repairs = self._repairs
            try:
                return self._read(i)
            except _BadHeaderError as error:
                self._repair(error, repairs)

    def _read(self, i: int) -> tuple[Sample, int]:
        if i < 0:
            raise IndexError(f"sample {i} is not in 0..{len(self.index) - 1}")
        first, end = self._first[i], self._first[i + 1]
        key = self._keys[self._key_at[i] : self._key_at[i + 1]].decode("utf-8", "surrogateescape")
        sample: Sample = {"__key__": key, "__url__": self._url}
        begin = self._offset[first] - BLOCK
        size = self._offset[end - 1] + self._size[end - 1] - begin
        if size > _WHOLE_BYTES:
            return sample, sum(self._read_member(sample, member) for member in range(first, end))
        block = self._pread(begin, size)
        if end - first == 1:
            if crc32(block[:BLOCK]) != self._header[first]:
                raise _BadHeaderError(begin)
            sample[self._names[self._extension[first]]] = block[BLOCK:]
            return sample, size - BLOCK
        total = 0
        for member in range(first, end):
            at, length = self._offset[member] - begin, self._size[member]
            if crc32(block[at - BLOCK : at]) != self._header[member]:
                raise _BadHeaderError(at + begin - BLOCK)
            sample[self._names[self._extension[member]]] = block[at : at + length]
            total += length
        return sample, total

    def _read_member(self, sample: Sample, member: int) -> int:
        at, length = self._offset[member], self._size[member]
        if crc32(self._pread(at - BLOCK, BLOCK)) != self._header[member]:
            raise _BadHeaderError(at - BLOCK)
        sample[self._names[self._extension[member]]] = self._pread(at, length)
        return length

    def close(self) -> None:
        """Let go of the file; who still reads is not disturbed."""
        self._file = None
        self._shard.close()

    def _pread(self, offset: int, size: int) -> bytes:
        file = self._file
        if file is None:
            file = self._file = self._shard.whole_file()
        if file is not None:
            try:
                found = pread(file.fd, size, offset)
            except OSError:  # said, and got around if that can be, by the shard
                found = b""
            if len(found) == size:
                return found
            self._file = None
        return self._shard.pread(offset, size)

    def _repair(self, error: "_BadHeaderError", repairs: int) -> None:
        """Have the shard fetched once more, if that was not done since the read began."""
        with self._lock:
            if self._repairs != repairs:
                return
            if self._repairs:
                raise ShardError(self._url, error.offset, f"{error}; {_TODO}") from error
            self._file = None
            try:
                self._shard.quarantine(str(error))
            except DamagedShardError as damaged:
                raise ShardError(self._url, error.offset, f"{error}; {_TODO}") from damaged
            self._repairs += 1


class _BadHeaderError(Exception):
    """What lies at `offset` is not the tar header that was indexed."""

    def __init__(self, offset: int) -> None:
        super().__init__("the tar header here is not the indexed one: the shard was changed")
        self.offset = offset
