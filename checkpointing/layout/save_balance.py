"""Divides what several ranks hold among them by bytes, along the grid of tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from checkpointing.format.element_types import element
from checkpointing.format.tiles import Box, Shape, tile_shape
from checkpointing.layout.tensor_layout import Counts, ShardPart


def quotas(loads: Counts, size: int) -> Counts:
    """Returns how many of `size` bytes each rank takes, so that those with the least to save end up
    with equal totals; int64, adds up to `size`.

    Args:
        loads: bytes that each rank saves already; int64, for at least one rank.
    """
    if len(loads) == 1:
        return np.array([size], np.int64)
    order = np.argsort(loads, kind="stable")
    low = loads[order]
    below = np.cumsum(low)
    # bytes needed to raise all lower loads up to each load
    needed = low * np.arange(1, len(low) + 1) - below
    taking = int(np.searchsorted(needed, size, side="right"))
    level, over = divmod(size + int(below[taking - 1]), taking)
    shares = np.zeros_like(loads)
    shares[order[:taking]] = level - low[:taking]
    shares[order[:over]] += 1
    return shares


class TileDivider:
    """Lays what the ranks of one group hold end to end in tiles, and divides it where the share of
    one rank ends and that of the next begins."""

    def __init__(self, shares: Counts) -> None:
        """
        Args:
            shares: bytes for each rank of the group, in their order; int64.
        """
        self._ends = np.cumsum(shares)
        self._at = 0  # bytes laid so far

    def take(
        self, dtype: str, shape: Shape, parts: Sequence[ShardPart]
    ) -> Iterator[tuple[int, ShardPart]]:
        """Append the parts of one tensor. Returns which rank of the group saves which part of
        them."""
        if len(self._ends) == 1:
            yield from ((0, part) for part in parts)
            return
        itemsize = element(dtype).itemsize
        for part in parts:
            begin, self._at = self._at, self._at + part.box.count * itemsize
            yield from self._divide(_Tiles(part, tile_shape(shape, itemsize), itemsize), begin)

    def _divide(self, tiles: _Tiles, begin: int) -> Iterator[tuple[int, ShardPart]]:
        """Divide the tiles of a part: a tile belongs to the rank in whose share its middle lies."""
        owners = np.searchsorted(2 * self._ends, 2 * begin + tiles.middles, side="right")
        edges = np.flatnonzero(np.diff(owners, prepend=-1, append=-1))
        for first, last in pairwise(edges.tolist()):
            owner = int(owners[first])
            for part in tiles.between(first, last):
                yield owner, part


class _Tiles:
    """The tiles of a part of a tensor, in row-major order."""

    def __init__(self, part: ShardPart, tile: Shape, itemsize: int) -> None:
        self._part = part
        box = part.box
        self._edges = [
            [o, *range((o // t + 1) * t, o + n, t), o + n]
            for o, n, t in zip(box.offsets, box.sizes, tile, strict=True)
        ]
        sizes = np.array([itemsize], np.int64)
        for edges in self._edges:
            sizes = np.multiply.outer(sizes, np.diff(edges)).reshape(-1)
        # twice the number of bytes before the middle of each tile, int64
        self.middles = 2 * np.cumsum(sizes) - sizes

    def between(self, first: int, last: int) -> list[ShardPart]:
        """Returns the tiles from `first` up to, not including, `last`, as few boxes."""
        grid = [len(edges) - 1 for edges in self._edges]
        return [self._joined(*block) for block in _blocks(grid, first, last)]

    def _joined(self, starts: Shape, counts: Shape) -> ShardPart:
        ends = [e[a + n] for e, a, n in zip(self._edges, starts, counts, strict=True)]
        offsets = tuple(e[a] for e, a in zip(self._edges, starts, strict=True))
        box = Box(offsets, tuple(end - o for end, o in zip(ends, offsets, strict=True)))
        inner = box.relative_to(self._part.box).offsets
        local = tuple(a + b for a, b in zip(self._part.local.offsets, inner, strict=True))
        return ShardPart(box, Box(local, box.sizes))


def _blocks(grid: Sequence[int], first: int, last: int) -> list[tuple[Shape, Shape]]:
    """Returns the cells from `first` up to, not including, `last` of a grid in row-major order, as
    few blocks: their starts and sizes."""
    if not grid:
        return [((), ())]
    row = math.prod(grid[1:])
    begin, end = -(-first // row), last // row  # whole rows
    if begin > end:  # inside one row
        return _row(grid, end, first - end * row, last - end * row)
    blocks = []
    if first < begin * row:
        blocks += _row(grid, begin - 1, first - (begin - 1) * row, row)
    if begin < end:
        whole = tuple(grid[1:])
        blocks.append(((begin, *(0 for _ in whole)), (end - begin, *whole)))
    if end * row < last:
        blocks += _row(grid, end, 0, last - end * row)
    return blocks


def _row(grid: Sequence[int], index: int, first: int, last: int) -> list[tuple[Shape, Shape]]:
    inner = _blocks(grid[1:], first, last)
    return [((index, *starts), (1, *counts)) for starts, counts in inner]
