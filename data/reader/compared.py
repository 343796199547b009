"""As `direct`, where the index knows what each member holds: that is compared, and no header, as
what has the right bytes is the right member. It costs no more than headers do."""

from os import pread

from xxhash import xxh3_64_intdigest

from data.cache.openfile import OpenFile
from data.indexing.content import LOW
from data.indexing.shard import ShardIndex
from data.reader.direct import WHOLE_BYTES, Direct, Keys, Sample


def comparing_reader(
    index: ShardIndex, key_of: Keys, url: str, file: OpenFile, otherwise: Direct
) -> Direct:
    """As `direct_reader`, of an index that has checksums of contents."""
    columns, names, fd = index.columns, index.extensions, file.fd
    firsts, offsets, sizes = (columns[name].data for name in ("first", "offset", "size"))
    sums, extensions = columns["content"].data, columns["extension"].data

    def several(i: int, _: OpenFile = file) -> tuple[Sample, int]:
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
        except OSError:  # said, and got around if that can be, by the shard
            return otherwise(i)
        return sample, total

    def alone(i: int, _: OpenFile = file) -> tuple[Sample, int]:
        """As `several`, where each sample has one member: number i."""
        length = sizes[i]
        try:
            content = pread(fd, length, offsets[i])
        except OSError:
            return otherwise(i)
        if xxh3_64_intdigest(content) & LOW != sums[i] or len(content) != length:
            return otherwise(i)
        return {"__key__": key_of(i), "__url__": url, names[extensions[i]]: content}, length

    # all have a member, so where there are as many, each has one
    return alone if len(sizes) == len(index) else several
