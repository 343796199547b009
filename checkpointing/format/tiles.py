"""The grid on which a tensor's global index space is cut into tiles: a pure function of shape and
dtype.

Each dimension is cut into 2**k parts, each ceil(size / 2**k) long, as FSDP and DTensor cut it for
2**k ranks. So their shard boundaries fall on tile boundaries, for any such world size that divides
the tensor, and unchanged chunks are found again after the world size changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

# bytes; below this, the costs of a chunk itself (a hash, a table row) begin to matter
MIN_TILE = 256 << 10
MAX_TILE = 8 << 20  # bytes; above this, reading a part of a tile wastes more than it saves
TILES = 64  # number of tiles of a tensor between the two: 8 x 8 for a matrix
MIN_RUN = 256  # bytes of the last dimension that stay together, so that gathering a tile is fast

Shape = tuple[int, ...]


@dataclass(frozen=True, order=True)
class Box:
    """A box of a tensor's index space."""

    offsets: Shape
    sizes: Shape

    @property
    def count(self) -> int:
        """The number of elements in it."""
        return math.prod(self.sizes)

    @property
    def slices(self) -> tuple[Any, ...]:
        """An index that makes a view of any array, also of one without dimensions."""
        return (*(slice(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True)), ...)

    def is_inside(self, shape: Shape) -> bool:
        """Whether all of it is in the index space of a tensor of this shape; an empty one is."""
        if not len(self.offsets) == len(self.sizes) == len(shape):
            return False
        each = zip(self.offsets, self.sizes, shape, strict=True)
        return 0 in self.sizes or all(0 <= at <= end - size for at, size, end in each)

    def intersect(self, other: Box) -> Box | None:
        """Returns the intersection of both boxes; None if it is empty."""
        if self == other and 0 not in self.sizes:
            return self
        low = tuple(map(max, self.offsets, other.offsets))
        ends = zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        high = tuple(min(a + n, b + m) for a, n, b, m in ends)
        if any(start >= end for start, end in zip(low, high, strict=True)):
            return None
        return Box(low, tuple(end - start for start, end in zip(low, high, strict=True)))

    def relative_to(self, outer: Box) -> Box:
        """Returns the same box in the coordinates of `outer`."""
        return Box(
            tuple(a - b for a, b in zip(self.offsets, outer.offsets, strict=True)), self.sizes
        )


def whole(shape: Shape) -> Box:
    return Box((0,) * len(shape), shape)


@lru_cache(1 << 14)
def tile_shape(shape: Shape, itemsize: int) -> Shape:
    """Returns the extents of a tile of a tensor of this shape, in elements per dimension.

    The dimension with the fewest cuts so far (the first of equals) is cut in two until a tile has
    at most the target number of bytes: 1/64 of the tensor, at least 256 KiB and at most 8 MiB.
    """
    size = math.prod(shape) * itemsize
    wanted = min(max(size // TILES, MIN_TILE), MAX_TILE)
    cuts = [0] * len(shape)
    tile = list(shape)
    while math.prod(tile) * itemsize > wanted:
        open_dims = [d for d in range(len(shape)) if _divisible(tile, d, itemsize)]
        if not open_dims:
            break
        dim = min(open_dims, key=lambda d: (cuts[d], d))
        cuts[dim] += 1
        tile[dim] = -(-shape[dim] // 2 ** cuts[dim])
    return tuple(tile)


def _divisible(tile: list[int], dim: int, itemsize: int) -> bool:
    if dim < len(tile) - 1 or len(tile) == 1:
        return tile[dim] > 1
    return tile[dim] * itemsize >= 2 * MIN_RUN


def tiles(box: Box, tile: Shape) -> Iterator[Box]:
    """Yields `box` cut along the grid, in row-major order: whole tiles, and parts of tiles at its
    edges."""
    if 0 in box.sizes:
        return
    if box.sizes == tile and not any(o % t for o, t in zip(box.offsets, tile, strict=True)):
        yield box
        return
    starts = [_cuts(o, n, t) for o, n, t in zip(box.offsets, box.sizes, tile, strict=True)]
    yield from _product(starts)


def is_on_grid(box: Box, shape: Shape, tile: Shape) -> bool:
    """Whether the box consists of whole tiles of a tensor of this shape."""
    return box.sizes == shape or all(
        at % extent == 0 and ((at + size) % extent == 0 or at + size == end)
        for at, size, end, extent in zip(box.offsets, box.sizes, shape, tile, strict=True)
    )


def _cuts(offset: int, size: int, extent: int) -> list[tuple[int, int]]:
    """Returns (start, length) of the pieces of one dimension."""
    edges = [offset, *range((offset // extent + 1) * extent, offset + size, extent), offset + size]
    return [(a, b - a) for a, b in pairwise(edges)]


def _product(pieces: list[list[tuple[int, int]]]) -> Iterator[Box]:
    if not pieces:
        yield Box((), ())
        return
    for start, size in pieces[0]:
        for rest in _product(pieces[1:]):
            yield Box((start, *rest.offsets), (size, *rest.sizes))
