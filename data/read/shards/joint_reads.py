"""Which samples of a shard, and which members of a sample, are read by one request.

Without a cache each read is a request, which costs a source more than the bytes between neighbours:
those of a batch in stored order are read together.
"""

from collections.abc import Iterator, Sequence

GAP_BYTES = 32 << 10
"""Bytes between two samples that are read and thrown away rather than make another request; not
more than the second one has, so that a batch takes at most twice its bytes."""
MOST_BYTES = 4 << 20
"""Bytes of one request for several samples: of a larger one, parts come sooner side by side."""


def is_one_read(size: int, content: int) -> bool:
    """Return whether all members of a sample are read by one request.

    Args:
        size: the bytes of the sample in its shard, with headers and what may lie between members.
        content: the bytes of its members.
    """
    return size <= MOST_BYTES and size - content <= content + GAP_BYTES


def joint_reads(spans: Sequence[tuple[int, int]]) -> Iterator[range]:
    """Yield the ranges of `spans` that are read together, which are all of them, each once.

    Args:
        spans: the (begin, end) of each sample in its shard, by rising begin.
    """
    first = 0
    for number, (begin, end) in enumerate(spans):
        if number == first:
            continue
        is_near = begin - spans[number - 1][1] <= min(GAP_BYTES, end - begin)
        if not is_near or end - spans[first][0] > MOST_BYTES:
            yield range(first, number)
            first = number
    if spans:
        yield range(first, len(spans))
