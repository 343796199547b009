"""As `direct`, where the index knows what each member holds: that is compared, and no header, as
what has the right bytes is the right member. It costs no more than headers do."""

from xxhash import xxh3_64_intdigest

from data.cache.openfile import OpenFile
from data.indexing.content import LOW
from data.indexing.shard import ShardIndex
from data.reader.direct import WHOLE_BYTES, Direct, Keys, Sample
from data.reader.pieces import Contents, Piece, Reader


def comparing_reader(
    index: ShardIndex, key_of: Keys, url: str, file: OpenFile, otherwise: Direct
) -> Reader:
    """Of an index that has checksums of contents. What goes wrong is left to `otherwise`, which
    reads a sample by itself. The file stays open for as long as this is there."""
    columns, names, fd = index.columns, index.extensions, file.fd
    firsts, offsets, sizes = (columns[name].data for name in ("first", "offset", "size"))
    sums, extensions = columns["content"].data, columns["extension"].data

    def ask_alone(i: int, pieces: list[Piece], _: OpenFile = file) -> None:
        """Where each sample has one member: number i."""
        pieces.append((fd, offsets[i], sizes[i], sums[i]))

    def make_alone(i: int, contents: Contents) -> tuple[Sample, int]:
        content = next(contents)
        if content is None:
            return otherwise(i)
        return {"__key__": key_of(i), "__url__": url, names[extensions[i]]: content}, len(content)

    def ask(i: int, pieces: list[Piece], _: OpenFile = file) -> None:
        first, end = firsts[i], firsts[i + 1]
        begin = offsets[first]
        span = offsets[end - 1] + sizes[end - 1] - begin
        if span <= WHOLE_BYTES:
            pieces.append((fd, begin, span, None))
            return
        for member in range(first, end):
            pieces.append((fd, offsets[member], sizes[member], sums[member]))

    def make(i: int, contents: Contents) -> tuple[Sample, int]:
        first, end = firsts[i], firsts[i + 1]
        begin = offsets[first]
        if offsets[end - 1] + sizes[end - 1] - begin <= WHOLE_BYTES:
            return cut(i, range(first, end), begin, next(contents))
        found = [next(contents) for _ in range(first, end)]
        sample: Sample = {"__key__": key_of(i), "__url__": url}
        total = 0
        for member, content in enumerate(found, first):
            if content is None:
                return otherwise(i)
            sample[names[extensions[member]]] = content
            total += len(content)
        return sample, total

    def cut(i: int, members: range, begin: int, block: bytes | None) -> tuple[Sample, int]:
        """Of a block that holds them all."""
        if block is None:
            return otherwise(i)
        sample: Sample = {"__key__": key_of(i), "__url__": url}
        total = 0
        for member in members:
            at, length = offsets[member] - begin, sizes[member]
            content = block[at : at + length]
            if xxh3_64_intdigest(content) & LOW != sums[member]:
                return otherwise(i)
            sample[names[extensions[member]]] = content
            total += length
        return sample, total

    # all have a member, so where there are as many, each has one
    return Reader(ask_alone, make_alone) if len(sizes) == len(index) else Reader(ask, make)
