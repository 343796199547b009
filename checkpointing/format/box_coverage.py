"""Checks that boxes cover a tensor: each element once, and no box across two tiles.

Boxes are kept in arrays and never handled one by one, since a checkpoint of many ranks has
millions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from checkpointing.format.tiles import Box, Shape

Boxes = NDArray[np.int64]  # (boxes, 2, dimensions): offsets, then sizes


def as_array(boxes: Collection[Box], dims: int) -> Boxes:
    """Raises:
    ValueError: a box has another number of dimensions.
    """
    if any(len(box.sizes) != dims for box in boxes):
        raise ValueError(f"boxes do not have {dims} dimensions")
    found = np.array([[box.offsets, box.sizes] for box in boxes], np.int64)
    return found.reshape(len(boxes), 2, dims)


def as_boxes(boxes: Boxes) -> list[Box]:
    return [Box(tuple(offsets), tuple(sizes)) for offsets, sizes in boxes.tolist()]


def elements(boxes: Sequence[Boxes]) -> NDArray[np.float64]:
    """Returns the number of elements of each box of each tensor, one after the other. As floats,
    because unchecked sizes could exceed the range of integers."""
    ends = np.cumsum([0, *map(len, boxes)])
    found = np.zeros(ends[-1])
    alike = _by_dims(boxes)
    if len(alike) == 1:
        found[:] = np.prod(np.concatenate(boxes)[:, 1], axis=1, dtype=float)
        return found
    for which in alike:
        rows = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in which])
        found[rows] = np.prod(np.concatenate([boxes[i][:, 1] for i in which]), axis=1, dtype=float)
    return found


def gap(shape: Shape, tile: Shape, boxes: Boxes) -> str | None:
    """Returns what is wrong if `boxes` do not cover the tensor exactly once; None if they do."""
    found = first_gap([(shape, tile)], [boxes])
    return None if found is None else found[1]


def first_gap(
    tensors: Sequence[tuple[Shape, Shape]], boxes: Sequence[Boxes]
) -> tuple[int, str] | None:
    """Returns the index of a tensor that its boxes do not cover exactly once, and what is wrong;
    None if there is none. All tensors are checked at once, since a model may have thousands with
    one box each.

    Args:
        tensors: the shape of each tensor and of its tiles.
    """
    found = [_gap_of(which, tensors, boxes) for which in _by_dims(boxes)]
    return min((one for one in found if one is not None), default=None)


def _by_dims(boxes: Sequence[Boxes]) -> list[list[int]]:
    """Returns the indexes of tensors, grouped by their number of dimensions."""
    found: dict[int, list[int]] = {}
    for number, its in enumerate(boxes):
        found.setdefault(its.shape[2], []).append(number)
    return list(found.values())


def _gap_of(
    which: Sequence[int], tensors: Sequence[tuple[Shape, Shape]], boxes: Sequence[Boxes]
) -> tuple[int, str] | None:
    """As `first_gap`, for tensors with the same number of dimensions."""
    dims = boxes[which[0]].shape[2]
    shapes, extents = (
        np.array([tensors[i][k] for i in which], np.int64).reshape(len(which), dims) for k in (0, 1)
    )
    mine = np.concatenate([boxes[i] for i in which])
    of = np.repeat(np.arange(len(which)), [len(boxes[i]) for i in which])
    outside = ~_inside(shapes[of], extents[of], mine)
    if outside.any():
        number = which[of[outside.argmax()]]
        return number, f"lie outside its shape {tensors[number][0]}"
    twice = _overlap(_tiles(shapes, extents, of, mine), mine)
    if twice is not None:
        return which[of[twice]], "overlap"
    covered = np.zeros(len(which), np.int64)
    np.add.at(covered, of, np.prod(mine[:, 1], axis=1, dtype=np.int64))
    for number, count in zip(which, covered.tolist(), strict=True):
        if count != (whole := math.prod(tensors[number][0])):
            return number, f"cover {count} of its {whole} elements"
    return None


def _inside(
    shapes: NDArray[np.int64], extents: NDArray[np.int64], boxes: Boxes
) -> NDArray[np.bool_]:
    """Whether each box is inside its tensor and inside one tile."""
    offsets, sizes = boxes[:, 0], boxes[:, 1]
    within = (offsets >= 0) & (sizes > 0) & (sizes <= shapes) & (offsets <= shapes - sizes)
    within &= extents > 0
    ends, extents = np.where(within, offsets + sizes - 1, 0), np.maximum(extents, 1)
    found: NDArray[np.bool_] = (within & (offsets // extents == ends // extents)).all(axis=1)
    return found


def _tiles(
    shapes: NDArray[np.int64], extents: NDArray[np.int64], of: NDArray[np.int64], boxes: Boxes
) -> NDArray[np.int64]:
    """Returns the number of each box's tile, among those of all tensors that have boxes."""
    number = np.zeros(len(boxes), np.int64)  # among the tiles of its tensor
    for dim in range(shapes.shape[1]):
        across = -(-shapes[:, dim] // np.maximum(extents[:, dim], 1))
        number = number * across[of] + boxes[:, 0, dim] // np.maximum(extents[of, dim], 1)
    order = np.lexsort((number, of))
    is_new = (np.diff(of[order]) != 0) | (np.diff(number[order]) != 0)
    found = np.zeros(len(boxes), np.int64)
    found[order[1:]] = np.cumsum(is_new)
    return found


def _overlap(tiles: NDArray[np.int64], boxes: Boxes) -> int | None:
    """Returns the number of a box that overlaps with another one of its tile; None if there is
    none. Boxes that are disjoint along a dimension are separated, all at once, which usually leaves
    none; the others are compared in pairs."""
    groups = tiles
    for dim in range(boxes.shape[2]):
        groups = _apart(groups, boxes[:, 0, dim], boxes[:, 1, dim])
    shared = np.flatnonzero(np.bincount(groups)[groups] > 1)
    shared = shared[np.argsort(groups[shared], kind="stable")]
    starts = np.flatnonzero(np.diff(groups[shared])) + 1
    for which in np.split(shared, starts):
        if len(which) and _any_two(boxes[which]):
            return int(which[0])
    return None


def _apart(
    groups: NDArray[np.int64], lows: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns smaller groups, numbered from 0: a group is split if its intervals are either equal
    or disjoint."""
    order = np.lexsort((sizes, lows, groups))
    groups, lows, sizes = groups[order], lows[order], sizes[order]
    is_new = np.diff(groups) != 0
    is_apart = lows[:-1] + sizes[:-1] <= lows[1:]
    is_same = (lows[:-1] == lows[1:]) & (sizes[:-1] == sizes[1:])
    number = np.concatenate([[0], np.cumsum(is_new)])[: len(order)]  # number of the group
    stays = np.zeros(len(order), bool)
    stays[number[1:][~is_new & ~is_apart & ~is_same]] = True
    found = np.zeros(len(order), np.int64)
    found[order[1:]] = np.cumsum(is_new | (is_apart & ~stays[number[1:]]))
    return found


def _any_two(boxes: Boxes) -> bool:
    """Whether any two boxes overlap. They are sorted along the dimension that is cut most, so that
    each is compared with few others: thousands of ranks may share a tile."""
    if not boxes.shape[2]:
        return len(boxes) > 1
    dim = max(range(boxes.shape[2]), key=lambda d: len(np.unique(boxes[:, 0, d])))
    boxes = boxes[np.argsort(boxes[:, 0, dim], kind="stable")]
    lows, highs = boxes[:, 0], boxes[:, 0] + boxes[:, 1]
    # among the boxes sorted after it, those that begin before it ends
    reach = np.searchsorted(lows[:, dim], highs[:, dim])
    for number, end in enumerate(reach):
        later = slice(number + 1, end)
        if ((lows[later] < highs[number]) & (lows[number] < highs[later])).all(axis=1).any():
            return True
    return False
