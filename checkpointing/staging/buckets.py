"""Cuts a state into buckets that are smaller than it: pure functions of boxes and sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from checkpointing.format.tiles import Box, Shape
from checkpointing.staging.slot_layout import PAGE, StagedSnapshot, next_offset, round_up

BUCKET_BYTES = 64 << 20
BUCKETS = 4
MIN_BUCKET = 1 << 20  # bytes
# share of the state that all buckets together may have: a third of what a save may take of the
# host's memory, since the process that empties them needs some, too
_SHARE = 0.1
# smallest number of parts per bucket, of what is cut: a bucket that is closed early is almost full
_PARTS = 4

# of a piece: its box in the whole tensor, the extents of a tile of the tensor, bytes per element
Grid: TypeAlias = tuple[Box, Shape, int]


@dataclass(frozen=True)
class BucketPart:
    """A box of a piece, in coordinates of the piece, whose first cell is at zeros."""

    piece: int  # index
    box: Box


@dataclass(frozen=True)
class Bucket:
    """A full bucket. Plain data.

    Attributes:
        content: the snapshot of its content, with one entry per part.
        parts: the parts of pieces in it; each part of each piece is in one bucket.
        number: number of the bucket, counted from 0.
        is_last: whether it completes the state.
    """

    content: StagedSnapshot
    parts: tuple[BucketPart, ...]
    number: int
    is_last: bool


def bucket_sizes(
    state_bytes: int, bucket_bytes: int = BUCKET_BYTES, count: int = BUCKETS, least: int = 0
) -> tuple[int, int]:
    """Returns the number of buckets and their size in bytes: together at most a tenth of the state.

    For a small state the number is reduced first, down to two, and then their size, down to 1 MiB
    or `least`; the buckets together may then exceed a tenth of the state.

    Args:
        least: smallest size of a bucket in bytes.
    """
    allowed = int(state_bytes * _SHARE)
    count = max(2, min(count, allowed // max(1, bucket_bytes)))
    size = min(bucket_bytes, allowed // count) // PAGE * PAGE
    return count, max(size, MIN_BUCKET, round_up(least, PAGE))


def largest_tile(pieces: Iterable[Grid]) -> int:
    """Returns the bytes of the largest part of a piece that lies in one tile; a bucket of that size
    cuts no tile."""
    return max((_tile_bytes(*piece) for piece in pieces), default=0)


def cut(box: Box, tile: Shape, itemsize: int, limit: int) -> list[Box]:
    """Cut `box` into boxes of at most `limit` bytes, in row-major order, along the grid of tiles.

    A tile is cut only if it is larger than that itself, and a single element never.

    Args:
        box: a box in the coordinates of the grid.
        tile: extents of a tile.
        itemsize: bytes per element.
    """
    return list(_cut(box, tile, itemsize, limit, 0))


def divide(
    pieces: Sequence[Grid], bucket_bytes: int
) -> Iterator[tuple[list[BucketPart], list[int]]]:
    """Divide pieces among buckets.

    Yields:
        For each bucket, its parts and their offsets from its start in bytes.

    Raises:
        ValueError: an element is larger than a bucket.
    """
    parts: list[BucketPart] = []
    offsets: list[int] = []
    end = 0
    for part, size in _parts(pieces, bucket_bytes):
        start = next_offset(end, size)
        if start + size > bucket_bytes and parts:
            yield parts, offsets
            parts, offsets, start = [], [], 0
        parts.append(part)
        offsets.append(start)
        end = start + size
    if parts:
        yield parts, offsets


def _tile_bytes(box: Box, tile: Shape, itemsize: int) -> int:
    extents = zip(box.sizes, tile, strict=True)
    return math.prod(min(size, extent) for size, extent in extents) * itemsize


def _parts(pieces: Sequence[Grid], bucket_bytes: int) -> Iterator[tuple[BucketPart, int]]:
    """Yields parts in the order of the pieces, with their bytes."""
    for index, (box, tile, itemsize) in enumerate(pieces):
        if itemsize > bucket_bytes:
            raise ValueError(
                f"a bucket of {bucket_bytes} bytes cannot hold an element of {itemsize} bytes"
            )
        limit = bucket_bytes
        if box.count * itemsize > bucket_bytes:
            limit = max(bucket_bytes // _PARTS, min(math.prod(tile) * itemsize, bucket_bytes))
        for part in cut(box, tile, itemsize, limit):
            yield BucketPart(index, part.relative_to(box)), part.count * itemsize


def _cut(box: Box, tile: Shape, itemsize: int, limit: int, dim: int) -> Iterator[Box]:
    if box.count * itemsize <= limit or box.count == 1:
        yield box
    elif dim == len(tile):
        yield from _halve(box, itemsize, limit)
    else:
        offset, size = box.offsets[dim], box.sizes[dim]
        per_index = box.count // size * itemsize
        for start, stop in _spans(offset, offset + size, tile[dim], limit // per_index):
            yield from _cut(_between(box, dim, start, stop), tile, itemsize, limit, dim + 1)


def _spans(start: int, end: int, extent: int, room: int) -> Iterator[tuple[int, int]]:
    """Yields `start` to `end` in spans that end on multiples of `extent`: the longest that are not
    above `room`, or one extent each."""
    while start < end:
        stop = max((start + room) // extent, start // extent + 1) * extent
        yield start, min(stop, end)
        start = stop


def _halve(box: Box, itemsize: int, limit: int) -> Iterator[Box]:
    """Yields the halves of a box without a grid, cut along its first dimension of more than one,
    until they fit."""
    if box.count * itemsize <= limit or box.count == 1:
        yield box
        return
    dim = next(d for d, size in enumerate(box.sizes) if size > 1)
    start, size = box.offsets[dim], box.sizes[dim]
    yield from _halve(_between(box, dim, start, start + size // 2), itemsize, limit)
    yield from _halve(_between(box, dim, start + size // 2, start + size), itemsize, limit)


def _between(box: Box, dim: int, start: int, stop: int) -> Box:
    offsets, sizes = list(box.offsets), list(box.sizes)
    offsets[dim], sizes[dim] = start, stop - start
    return Box(tuple(offsets), tuple(sizes))
