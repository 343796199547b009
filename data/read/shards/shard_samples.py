"""The samples of an open shard, made of its index and its bytes."""

import builtins
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, TypeAlias
from zlib import crc32

from data.cache.cached_shard import CachedShard
from data.cache.files.file_handle import FileHandle
from data.errors import DamagedShardError, DataError, ShardError
from data.index.shard.shard_index import ShardIndex
from data.index.tar.content_checksums import content_sum
from data.index.tar.tar_header import BLOCK
from data.read.shards.checksum_samples import checksum_reader
from data.read.shards.joint_reads import is_one_read, joint_reads
from data.read.shards.local_file_samples import WHOLE_BYTES, Sample, direct_reader, keys_of
from data.read.shards.open_descriptors import OPEN_SHARDS
from data.read.shards.piece_reads import SampleReader, immediate_reader
from data.read.shards.single_members import (
    SingleMemberFile,
    entry_bytes,
    forget_open_files,
)

Check: TypeAlias = Literal["auto", "content", "headers"]
"""What a read compares of each member with the index: "content" its bytes, "headers" the tar header
before it, "auto" its bytes where the index has their checksum."""

_TODO = (
    "fetch it again; if the change was intended, index the dataset again (`hpckit data index "
    "--hash`)"
)


class ShardSamples:
    """The samples of one shard. Thread-safe. Its index is kept in memory; `release` closes its
    file.

    Args:
        reopen: opens the shard again after each `release`.
        check: what a read compares with the index, which must contain it.
    """

    def __init__(
        self,
        index: ShardIndex,
        reopen: Callable[[], CachedShard],
        url: str,
        shard: CachedShard,
        check: Check = "auto",
    ) -> None:
        self.used = True
        self.single_member_file: SingleMemberFile | None = None
        """What `read_single_members` needs of it, as long as its samples can be read so."""
        self.index = index
        self._reopen, self._url = reopen, url
        self._shard: CachedShard | None = shard
        self._direct: SampleReader | None = None  # set once all of it is in a file of this machine
        self._repairs = 0
        self._lock = threading.Lock()
        columns = index.columns
        self._first = columns["first"].data
        self._offset, self._size = columns["offset"].data, columns["size"].data
        self._header = columns["header"].data
        compares = check != "headers" and index.has_content_sums
        self._sums = columns["content"].data if compares else None
        self._extension = columns["extension"].data
        self._names = index.extensions
        self._key = keys_of(index)
        OPEN_SHARDS.register(self)

    @property
    def bytes(self) -> int:
        """The bytes of the index in memory."""
        entries = 0 if self._sums is None else entry_bytes(self.index)
        return entries + sum(column.nbytes for column in self.index.columns.values())

    @property
    def is_open(self) -> bool:
        """Whether it holds a descriptor, as far as is known."""
        return self._shard is not None

    @property
    def _is_local(self) -> bool:
        shard = self._shard
        return shard is not None and shard.local

    @property
    def reader(self) -> SampleReader:
        """Return a reader like `read`, faster where the file is known; ask for a new one for each
        batch."""
        self.used = True
        if (direct := self._direct) is not None:
            return direct
        shard = self._shard
        if shard is None or self._is_local:
            return immediate_reader(self.read)
        if shard.is_read_from_source:
            return immediate_reader(self.read, groups=self._groups, read_group=self._read_group)
        return immediate_reader(self.read, read_arrived=self._read_arrived)

    def read(self, i: int) -> tuple[Sample, int]:
        """Read sample i and check each member; returns it with its bytes.

        Raises IndexError; ShardError if the shard is not what its index says, FetchError if it
        cannot be fetched.
        """
        if not 0 <= i < len(self.index):
            raise IndexError(f"sample {i} is not in 0..{len(self.index) - 1}")
        with suppress(_OtherBytesError):
            return self._read(i)
        repairs = self._repairs
        try:  # a second read: the fault may have been in the memory of this process
            return self._read(i)
        except _OtherBytesError as error:
            self._repair(error, repairs)
        try:
            return self._read(i)
        except _OtherBytesError as error:
            raise ShardError(self._url, error.offset, f"{error}; {_TODO}") from error

    def _read_arrived(self, i: int) -> tuple[Sample, int] | None:
        """Read sample i as `read`, if that needs no waiting and no request; None if it does, or if
        it is not right or cannot be read, which `read` then finds out again."""
        try:
            return self._made(i, self._pread_arrived)
        except (_NotArrivedError, _OtherBytesError, DataError, OSError):
            return None

    def _read(self, i: int) -> tuple[Sample, int]:
        return self._made(i, self._pread)

    def _groups(self, samples: Sequence[int]) -> list[list[int]]:
        """Divide samples into those that are read together."""
        ordered = sorted(set(samples))
        return [[ordered[n] for n in group] for group in joint_reads([*map(self._span, ordered)])]

    def _read_group(self, samples: Sequence[int]) -> dict[int, tuple[Sample, int]]:
        """Read samples that lie side by side, by one request; those that are not right are left to
        `read`. Raises as `read`."""
        begin, end = self._span(samples[0])[0], self._span(samples[-1])[1]
        block = self._pread(begin, end - begin)
        found = {}
        for i in samples:
            with suppress(_OtherBytesError):
                found[i] = self._made(i, lambda at, size: block[at - begin : at - begin + size])
        return found

    def _span(self, i: int) -> tuple[int, int]:
        """Return the bytes of sample i in its shard, with their headers, as (begin, end)."""
        last = self._first[i + 1] - 1
        return self._offset[self._first[i]] - BLOCK, self._offset[last] + self._size[last]

    def _made(self, i: int, pread: "Callable[[int, int], builtins.bytes]") -> tuple[Sample, int]:
        members = range(self._first[i], self._first[i + 1])
        begin, end = self._span(i)
        size = end - begin
        is_one = size <= WHOLE_BYTES
        if not is_one and not self._is_local:  # each read may be a request
            is_one = is_one_read(size, sum(self._size[members.start : members.stop]))
        block = pread(begin, size) if is_one else None

        def read(at: int, length: int) -> builtins.bytes:
            if block is None:
                return pread(at, length)
            return block[at - begin : at - begin + length]

        sample: Sample = {"__key__": self._key(i), "__url__": self._url}
        total = 0
        for member in members:
            at, length = self._offset[member], self._size[member]
            if self._sums is None and crc32(read(at - BLOCK, BLOCK)) != self._header[member]:
                raise _OtherBytesError(
                    at - BLOCK, "the tar header at this offset is not the indexed one"
                )
            content = read(at, length)
            if self._sums is not None and content_sum(content) != self._sums[member]:
                raise _OtherBytesError(
                    at, "the bytes of the member at this offset are not the indexed ones"
                )
            sample[self._names[self._extension[member]]] = content
            total += length
        return sample, total

    def release(self) -> None:
        """Close the file; reads that are under way are not disturbed."""
        self._shard = None
        self._read_by(None)

    def _read_by(self, direct: SampleReader | None) -> None:
        """Read samples by this reader from now on; None: by none."""
        self._direct = direct
        self.single_member_file = None if direct is None else direct.single_member_file
        if direct is None:
            forget_open_files()

    def _pread(self, offset: int, size: int) -> "builtins.bytes":
        return self._found().pread(offset, size, compares=self._sums is not None)

    def _pread_arrived(self, offset: int, size: int) -> "builtins.bytes":
        compares = self._sums is not None
        found = self._found().pread_arrived(offset, size, compares=compares)
        if found is None:
            raise _NotArrivedError
        return found

    def _found(self) -> CachedShard:
        """Return the open shard; from the next reader on, its file is read directly if all of it is
        there."""
        shard = self._opened()
        file = shard.whole_file() if self._direct is None else None
        if file is not None and self._shard is shard:
            self._read_by(self._direct_reader(file))
            if self._shard is not shard:  # another thread has released it meanwhile
                self._read_by(None)
        return shard

    def _direct_reader(self, file: FileHandle) -> SampleReader:
        """Return a reader of samples that are in a file of this machine."""
        args = self.index, self._key, self._url, file, self._indirect
        if self._sums is None:
            return immediate_reader(direct_reader(*args))
        return checksum_reader(*args)

    def _opened(self) -> CachedShard:
        shard = self._shard
        if shard is None:
            with self._lock:
                shard = self._shard = self._shard or self._reopen()
            OPEN_SHARDS.register(self)
        return shard

    def _indirect(self, i: int) -> tuple[Sample, int]:
        self._read_by(None)
        return self.read(i)

    def _repair(self, error: "_OtherBytesError", repairs: int) -> None:
        """Have the shard fetched again, unless that was done since the read began."""
        shard = self._opened()
        with self._lock:
            if self._repairs != repairs:
                return
            self._read_by(None)
            try:
                shard.quarantine(str(error))
            except DamagedShardError as damaged:
                raise ShardError(self._url, error.offset, f"{error}; {_TODO}") from damaged
            self._repairs += 1


class _NotArrivedError(Exception):
    """Bytes would have to be waited for."""


class _OtherBytesError(Exception):
    """The content at `offset` is not what was indexed."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(f"{problem}: the shard has changed or is damaged")
        self.offset = offset
