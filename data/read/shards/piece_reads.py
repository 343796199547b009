"""Reading all pieces that a batch needs from files one after another, with little work in between.

Threads that read at the same time wait for the interpreter's lock after each read. The less they do
with the lock until the next read, the less they wait: with two threads, samples of 100 KB take 15
to 25 % less time than if each sample is made as soon as it is read.
"""

from collections.abc import Callable, Iterator, Sequence
from os import pread
from typing import NamedTuple, TypeAlias

from xxhash import xxh3_64_intdigest

from data.index.tar.content_checksums import LOW
from data.read.shards.local_file_samples import Direct, Sample
from data.read.shards.single_members import SingleMemberFile

# (descriptor, offset, bytes, checksum as of `content_sum`)
Piece: TypeAlias = tuple[int, int, int, int]
# None if it could not be read or does not match its checksum
Contents: TypeAlias = Iterator[bytes | None]
Make: TypeAlias = Callable[[int, Contents], tuple[Sample, int]]


class SampleReader(NamedTuple):
    """Reads samples of one shard in two steps; samples are given by their number in the shard."""

    make: Make
    """Return the sample and the bytes of its members, made from the next contents in the iterator,
    which it consumes in any case. Raises as `ShardSamples.read`."""
    ask: Callable[[int, list[Piece]], None] | None = None
    """Appends the pieces to read for a sample; None if it is read when it is made."""
    read_arrived: Callable[[int], tuple[Sample, int] | None] | None = None
    """Of a reader whose `make` may wait for a source, so that many samples should be made in
    parallel: returns a sample that needs no waiting, else None. Only for a reader that asks for no
    pieces."""
    groups: Callable[[Sequence[int]], list[list[int]]] | None = None
    """Of a reader whose reads are requests: divides samples into groups of which each should be
    read by one, by `read_group`."""
    read_group: Callable[[Sequence[int]], dict[int, tuple[Sample, int]]] | None = None
    """Returns the samples of a group that are right, each with its bytes."""
    single_member_file: SingleMemberFile | None = None
    """Of a shard whose samples `read_single_members` can read; `make` reads those that it does
    not."""


def immediate_reader(
    read: Direct,
    *,
    read_arrived: Callable[[int], tuple[Sample, int] | None] | None = None,
    groups: Callable[[Sequence[int]], list[list[int]]] | None = None,
    read_group: Callable[[Sequence[int]], dict[int, tuple[Sample, int]]] | None = None,
) -> SampleReader:
    """Return a reader that reads a sample when it makes it, with these further functions."""
    return SampleReader(
        lambda i, _: read(i), read_arrived=read_arrived, groups=groups, read_group=read_group
    )


def failing_reader(error: Exception) -> SampleReader:
    """Return a reader of a shard that could not be opened, which raises `error`."""

    def fail(_: int) -> tuple[Sample, int]:
        raise error

    return immediate_reader(fail)


def read_pieces(pieces: Sequence[Piece]) -> Contents:
    """Read the contents of pieces, in their order. The descriptors must stay open meanwhile."""
    found: list[bytes | None] = []
    keep = found.append
    for fd, at, size, checksum in pieces:
        try:
            content = pread(fd, size, at)
        except OSError:  # the shard reports it, and tries to repair it
            keep(None)
            continue
        right = xxh3_64_intdigest(content) & LOW == checksum and len(content) == size
        keep(content if right else None)
    return iter(found)
