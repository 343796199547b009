"""The grid, and cutting boxes along it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.format.tiles import (
    MAX_TILE,
    MIN_RUN,
    MIN_TILE,
    TILES,
    Box,
    tile_shape,
    tiles,
    whole,
)
from tests.unit.checkpointing.format.sample_documents import SHAPES, boxes_in, covers_once

KIB, MIB = 1 << 10, 1 << 20
ITEMSIZES = st.sampled_from([1, 2, 4, 8, 16])
BIG_SHAPES = st.lists(st.integers(0, 200_000) | st.integers(0, 5), max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("shape", "itemsize", "tile"),
    [
        ((), 8, ()),
        ((0, 5), 4, (0, 5)),
        ((256, 256), 4, (256, 256)),  # 256 KiB: one tile
        ((256, 257), 4, (128, 257)),
        ((1024, 1024), 4, (256, 256)),  # 4 MiB: at least 256 KiB each
        ((8192, 8192), 4, (1024, 1024)),  # 256 MiB: 64 tiles of 4 MiB
        ((65536, 8192), 4, (4096, 512)),  # 2 GiB: 8 MiB at most
        ((50257, 768), 4, (3142, 96)),  # 8 x 8 would be 336 bytes too many
        ((1 << 24,), 4, (1 << 18,)),
        ((4, 1 << 24), 1, (1, 1 << 20)),
        ((1 << 24, 64), 4, (32768, 64)),  # 256 bytes of the last dimension stay together
        ((3, 5, 1 << 20), 2, (1, 1, 131072)),
    ],
)
def test_tiles_of_known_shapes(
    shape: tuple[int, ...], itemsize: int, tile: tuple[int, ...]
) -> None:
    assert tile_shape(shape, itemsize) == tile


@given(BIG_SHAPES, ITEMSIZES)
def test_a_tile_is_no_larger_than_wanted_unless_nothing_can_be_cut(
    shape: tuple[int, ...], itemsize: int
) -> None:
    tile = tile_shape(shape, itemsize)
    size = math.prod(shape) * itemsize
    wanted = min(max(size // TILES, MIN_TILE), MAX_TILE)
    if math.prod(tile) * itemsize > wanted:
        *others, last = tile
        assert all(n == 1 for n in others)
        assert last * itemsize < 2 * MIN_RUN or (not others and last == 1)
    for n, t in zip(shape, tile, strict=True):
        assert any(t == -(-n // 2**cuts) for cuts in range(40)), "halved again and again"


@given(BIG_SHAPES, ITEMSIZES)
def test_tiles_are_not_much_smaller_than_wanted(shape: tuple[int, ...], itemsize: int) -> None:
    tile = tile_shape(shape, itemsize)
    size = math.prod(shape) * itemsize
    wanted = min(max(size // TILES, MIN_TILE), MAX_TILE)
    if size > wanted:
        # each cut halves one dimension, and was made because there was more than wanted
        assert math.prod(tile) * itemsize * 2 >= wanted


@given(st.integers(1, 50), st.integers(1, 2000), st.sampled_from([2, 4, 8, 16, 64]), ITEMSIZES)
def test_shards_of_a_power_of_two_of_ranks_are_whole_tiles_or_even_parts_of_one(
    unit: int, columns: int, ranks: int, itemsize: int
) -> None:
    """As long as the ranks' shards are of one size."""
    rows = unit << 10
    tile, _ = tile_shape((rows, columns), itemsize)
    shard = rows // ranks
    assert shard % tile == 0 or tile % shard == 0


@given(SHAPES, st.data())
def test_a_box_is_cut_into_pieces_that_fill_it_and_lie_in_one_tile_each(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    box = data.draw(boxes_in(shape))
    tile = tuple(data.draw(st.integers(1, n)) for n in shape)
    pieces = list(tiles(box, tile))
    assert covers_once(box, pieces)
    assert pieces == sorted(pieces), "row-major"
    for piece in pieces:
        sides = zip(piece.offsets, piece.sizes, tile, strict=True)
        assert all(o // t == (o + n - 1) // t for o, n, t in sides)
    # two pieces never share a tile
    corners = {tuple(o // t for o, t in zip(p.offsets, tile, strict=True)) for p in pieces}
    assert len(corners) == len(pieces)


def test_boxes_without_elements_and_without_dimensions() -> None:
    assert list(tiles(Box((0, 0), (0, 5)), (0, 5))) == []
    assert list(tiles(Box((3, 5), (2, 0)), (4, 4))) == []
    assert list(tiles(whole(()), ())) == [Box((), ())]
    assert Box((), ()).count == 1


@given(SHAPES, st.data())
def test_an_intersection_is_what_both_cover(shape: tuple[int, ...], data: st.DataObject) -> None:
    a, b = data.draw(boxes_in(shape, empty=True)), data.draw(boxes_in(shape, empty=True))

    def elements(box: Box) -> set[tuple[int, ...]]:
        found: set[tuple[int, ...]] = {()}
        for o, n in zip(box.offsets, box.sizes, strict=True):
            found = {(*head, i) for head in found for i in range(o, o + n)}
        return found

    common = a.intersect(b)
    assert common == b.intersect(a)
    assert (elements(common) if common else set()) == elements(a) & elements(b)
    if common:
        inner = common.relative_to(a)
        assert all(
            o >= 0 and o + n <= m
            for o, n, m in zip(inner.offsets, inner.sizes, a.sizes, strict=True)
        )
