"""Boxes fill a tensor, or it is said what is wrong: as one would find looking at every two."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.format.box_coverage import as_array, first_gap, gap
from checkpointing.format.tiles import Box, Shape, tiles, whole


@pytest.mark.parametrize(
    ("boxes", "problem"),
    [
        ([((0, 0), (2, 4)), ((2, 0), (2, 4))], None),
        ([((0, 0), (2, 4)), ((2, 0), (1, 4)), ((3, 0), (1, 4))], None),
        ([((0, 0), (2, 4))], "cover 8 of its 16 elements"),
        ([], "cover 0 of its 16 elements"),
        ([((0, 0), (2, 4)), ((2, 0), (2, 4)), ((2, 0), (1, 1))], "overlap"),
        ([((0, 0), (4, 4))], "lie outside"),  # two tiles
        ([((1, 0), (2, 4))], "lie outside"),  # parts of two tiles
        ([((4, 0), (2, 4))], "lie outside"),
        ([((0, 0), (2, 5))], "lie outside"),
        ([((0, 0), (0, 4))], "lie outside"),
        ([((-1, 0), (1, 4))], "lie outside"),
        ([((1 << 62, 0), (1 << 62, 4))], "lie outside"),  # their sum is below zero
        ([((0, 0), ((1 << 63) - 1, 4))], "lie outside"),
    ],
)
def test_what_is_wrong_with_boxes(boxes: list[tuple[Shape, Shape]], problem: str | None) -> None:
    found = gap((4, 4), (2, 4), as_array([Box(*box) for box in boxes], 2))
    assert (found is None) if problem is None else (found is not None and problem in found)


def test_boxes_of_other_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="2 dimensions"):
        as_array([Box((0,), (2,))], 2)


def boxes_of(dims: int) -> st.SearchStrategy[list[Box]]:
    one = st.builds(
        Box, st.tuples(*[st.integers(0, 6)] * dims), st.tuples(*[st.integers(1, 4)] * dims)
    )
    return st.lists(one, max_size=5)


@given(st.integers(0, 3).flatmap(lambda dims: st.tuples(st.just(dims), boxes_of(dims))))
def test_boxes_overlap_if_any_two_do(given: tuple[int, list[Box]]) -> None:
    dims, boxes = given
    expected = any(a.intersect(b) for i, a in enumerate(boxes) for b in boxes[:i])
    problem = gap((10,) * dims, (10,) * dims, as_array(boxes, dims))
    assert (problem == "overlap") == expected


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Shape, Shape, list[Box]]:
    """A tensor, its tiles, and boxes that fill it: those of ranks that cut it anyhow, each cut by
    tiles."""
    dims = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 12)) for _ in range(dims))
    tile = tuple(draw(st.integers(1, 12)) for _ in range(dims))
    pieces = [whole(shape)]
    for _ in range(draw(st.integers(0, 6))):
        piece = pieces.pop(draw(st.integers(0, len(pieces) - 1)))
        dim = draw(st.integers(0, dims - 1))
        at = draw(st.integers(0, piece.sizes[dim]))
        pieces += [half for half in halves(piece, dim, at) if half.count]
    boxes = [box for piece in pieces for box in tiles(piece, tile)]
    return shape, tile, draw(st.permutations(boxes))


def halves(box: Box, dim: int, at: int) -> tuple[Box, Box]:
    def moved(offset: int, size: int) -> Box:
        offsets, sizes = list(box.offsets), list(box.sizes)
        offsets[dim], sizes[dim] = offset, size
        return Box(tuple(offsets), tuple(sizes))

    start, size = box.offsets[dim], box.sizes[dim]
    return moved(start, at), moved(start + at, size - at)


@given(cuts(), st.data())
def test_what_fills_a_tensor_does_so_until_one_is_changed(
    made: tuple[Shape, Shape, list[Box]], data: st.DataObject
) -> None:
    shape, tile, boxes = made
    assert gap(shape, tile, as_array(boxes, len(shape))) is None
    number = data.draw(st.integers(0, len(boxes) - 1))
    less = boxes[:number] + boxes[number + 1 :]
    found = gap(shape, tile, as_array(less, len(shape)))
    covered = math.prod(shape) - boxes[number].count
    assert found == f"cover {covered} of its {math.prod(shape)} elements"
    twice = as_array([*boxes, boxes[number]], len(shape))
    assert gap(shape, tile, twice) == "overlap"


@given(st.lists(cuts(), max_size=6), st.data())
def test_of_many_tensors_the_one_that_is_not_filled_is_told(
    made: list[tuple[Shape, Shape, list[Box]]], data: st.DataObject
) -> None:
    tensors = [(shape, tile) for shape, tile, _ in made]
    boxes = [as_array(boxes, len(shape)) for shape, _, boxes in made]
    assert first_gap(tensors, boxes) is None
    if made:
        wrong = data.draw(st.integers(0, len(made) - 1))
        boxes[wrong] = np.concatenate([boxes[wrong], boxes[wrong][:1]])
        assert first_gap(tensors, boxes) == (wrong, "overlap")
        boxes[wrong] = boxes[wrong][:0]
        count = math.prod(made[wrong][0])
        assert first_gap(tensors, boxes) == (wrong, f"cover 0 of its {count} elements")
