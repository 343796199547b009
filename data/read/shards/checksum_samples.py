"""Readers like those of `local_file_samples`, which compare the checksum of each member's content
from the index. No header is compared, as a member with the right content is the right one. This
costs no more than comparing headers."""

from os import pread

from xxhash import xxh3_64_intdigest

from data.cache.files.file_handle import FileHandle
from data.index.shard.shard_index import ShardIndex
from data.index.tar.content_checksums import LOW
from data.read.shards.local_file_samples import WHOLE_BYTES, Direct, Keys, Sample
from data.read.shards.piece_reads import Contents, Piece, SampleReader
from data.read.shards.single_members import single_member_file


def checksum_reader(
    index: ShardIndex, key_of: Keys, url: str, file: FileHandle, otherwise: Direct
) -> SampleReader:
    """Return a reader for an index that has checksums of contents. On an error, `otherwise` reads
    the sample by itself. The file stays open as long as the reader exists."""
    is_small = index.bytes <= WHOLE_BYTES * len(index)
    make = _read_each if is_small else _read_in_batches
    return make(index, key_of, url, file, otherwise)


def _read_in_batches(
    index: ShardIndex, key_of: Keys, url: str, file: FileHandle, otherwise: Direct
) -> SampleReader:
    """Return a reader that reads all samples of a batch before it makes the first, see
    `piece_reads`."""
    columns, names, fd = index.columns, index.extensions, file.fd
    firsts, offsets, sizes = (columns[name].data for name in ("first", "offset", "size"))
    sums, extensions = columns["content"].data, columns["extension"].data

    def ask_single(i: int, pieces: list[Piece], _: FileHandle = file) -> None:
        """As `ask`, where each sample has one member: number i."""
        pieces.append((fd, offsets[i], sizes[i], sums[i]))

    def make_single(i: int, contents: Contents) -> tuple[Sample, int]:
        content = next(contents)
        if content is None:
            return otherwise(i)
        return {"__key__": key_of(i), "__url__": url, names[extensions[i]]: content}, len(content)

    def ask(i: int, pieces: list[Piece], _: FileHandle = file) -> None:
        for member in range(firsts[i], firsts[i + 1]):
            pieces.append((fd, offsets[member], sizes[member], sums[member]))

    def make(i: int, contents: Contents) -> tuple[Sample, int]:
        first, end = firsts[i], firsts[i + 1]
        found = [next(contents) for _ in range(first, end)]
        sample: Sample = {"__key__": key_of(i), "__url__": url}
        total = 0
        for member, content in enumerate(found, first):
            if content is None:
                return otherwise(i)
            sample[names[extensions[member]]] = content
            total += len(content)
        return sample, total

    # all have a member, so where there are as many members as samples, each has one
    if len(sizes) == len(index):
        return SampleReader(make_single, ask_single)
    return SampleReader(make, ask)


def _read_each(
    index: ShardIndex, key_of: Keys, url: str, file: FileHandle, otherwise: Direct
) -> SampleReader:
    """Return a reader that reads each sample as it makes it: this is less work for small ones,
    which a consumer best reads by itself, see `InlineReadDecision`."""
    columns, names, fd = index.columns, index.extensions, file.fd
    firsts, offsets, sizes = (columns[name].data for name in ("first", "offset", "size"))
    sums, extensions = columns["content"].data, columns["extension"].data

    def all_members(i: int, _: Contents, __: FileHandle = file) -> tuple[Sample, int]:
        first, end = firsts[i], firsts[i + 1]
        begin = offsets[first]
        span = offsets[end - 1] + sizes[end - 1] - begin
        sample: Sample = {"__key__": key_of(i), "__url__": url}
        total = 0
        try:
            block = pread(fd, span, begin) if span <= WHOLE_BYTES else None
            for member in range(first, end):
                at, length = offsets[member], sizes[member]
                if block is None:
                    content = pread(fd, length, at)
                else:
                    content = block[at - begin : at - begin + length]
                if xxh3_64_intdigest(content) & LOW != sums[member] or len(content) != length:
                    return otherwise(i)
                sample[names[extensions[member]]] = content
                total += length
        except OSError:  # the shard reports it, and tries to repair it
            return otherwise(i)
        return sample, total

    def single_member(i: int, _: Contents, __: FileHandle = file) -> tuple[Sample, int]:
        """Read sample i as `all_members` does, where each sample has one member: number i."""
        length = sizes[i]
        try:
            content = pread(fd, length, offsets[i])
        except OSError:
            return otherwise(i)
        if xxh3_64_intdigest(content) & LOW != sums[i] or len(content) != length:
            return otherwise(i)
        return {"__key__": key_of(i), "__url__": url, names[extensions[i]]: content}, length

    if len(sizes) == len(index):
        return SampleReader(single_member, single_member_file=single_member_file(index, url, file))
    return SampleReader(all_members)
