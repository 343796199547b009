"""A state through buckets that are smaller than it: nothing is lost, and tiles stay whole."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checkpointing.errors import StageError
from checkpointing.format.element_types import element
from checkpointing.format.tiles import Box, Shape, tile_shape, tiles, whole
from checkpointing.staging.bucket_stager import BucketStager
from checkpointing.staging.buckets import (
    MIN_BUCKET,
    Bucket,
    bucket_sizes,
    cut,
    divide,
    largest_tile,
)
from checkpointing.staging.slot_layout import PAGE
from checkpointing.staging.stager import StagePiece
from tests.effort import times

MIB = 1 << 20


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (100 << 30, (4, 64 * MIB)),
        (2 << 30, (3, 64 * MIB)),
        (1 << 30, (2, (int((1 << 30) * 0.1) // 2) // PAGE * PAGE)),
        (5 * MIB, (2, MIN_BUCKET)),
        (0, (2, MIN_BUCKET)),
    ],
)
def test_sizes(state: int, expected: tuple[int, int]) -> None:
    assert bucket_sizes(state) == expected


@st.composite
def grids(draw: st.DrawFn) -> tuple[Box, Shape, int]:
    """A box of a tensor, an extent of tiles, bytes per element."""
    shape = tuple(draw(st.lists(st.integers(1, 40), max_size=3)))
    tile = tuple(draw(st.integers(1, size)) for size in shape)
    starts = tuple(draw(st.integers(0, size)) for size in shape)
    sizes = tuple(
        draw(st.integers(0, size - start)) for size, start in zip(shape, starts, strict=True)
    )
    return Box(starts, sizes), tile, draw(st.sampled_from([1, 2, 4, 16]))


def test_no_bucket_is_smaller_than_it_has_to_be() -> None:
    assert bucket_sizes(5 * MIB, least=8 * MIB - 5) == (2, 8 * MIB)


@given(st.lists(grids(), max_size=6))
def test_a_bucket_of_the_largest_tile_cuts_none(pieces: list[tuple[Box, Shape, int]]) -> None:
    size = max(largest_tile(pieces), 16)
    found = [part for parts, _ in divide(pieces, size) for part in parts]
    for index, (box, tile, _) in enumerate(pieces):
        mine = [part.box for part in found if part.piece == index]
        for cell in tiles(box, tile):
            assert sum(part.intersect(cell.relative_to(box)) is not None for part in mine) == 1


@given(st.integers(21 * MIB, 1 << 42), st.integers(MIB, 1 << 30), st.integers(2, 9))
def test_buckets_are_a_small_part_of_the_state(state: int, size: int, count: int) -> None:
    found, each = bucket_sizes(state, size, count)
    assert 2 <= found <= count
    assert MIN_BUCKET <= each <= max(size, MIN_BUCKET)
    assert found * each <= 0.1 * state


def covered(boxes: list[Box], outer: Box) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """How often each cell of `outer` is covered."""
    times = np.zeros(outer.sizes, np.int64)
    for box in boxes:
        times[box.relative_to(outer).slices] += 1
    return times


@settings(max_examples=times(150))
@given(grids(), st.integers(16, 3000))
def test_cut_covers_each_cell_once_and_keeps_tiles_whole(
    grid: tuple[Box, Shape, int], limit: int
) -> None:
    box, tile, itemsize = grid
    boxes = cut(box, tile, itemsize, limit)
    assert (covered(boxes, box) == 1).all()
    assert all(part.count * itemsize <= limit for part in boxes)
    if math.prod(tile) * itemsize <= limit:
        for cell in tiles(box, tile):
            assert sum(part.intersect(cell) is not None for part in boxes) == 1


def test_what_fits_is_not_cut() -> None:
    assert cut(whole((10, 10)), (5, 5), 4, 400) == [whole((10, 10))]
    assert len(cut(whole((10, 10)), (5, 5), 4, 399)) == 2


def test_rows_of_tiles_go_together() -> None:
    parts = cut(Box((3, 0), (13, 8)), (4, 4), 1, 70)
    assert [(part.offsets, part.sizes) for part in parts] == [((3, 0), (5, 8)), ((8, 0), (8, 8))]


@settings(max_examples=times(50))
@given(st.lists(grids(), max_size=6), st.integers(600, 20_000))
@example([(whole((600,)), (600,), 1), (whole((600,)), (600,), 1)], 600)
def test_buckets_hold_all_once_in_order(pieces: list[tuple[Box, Shape, int]], size: int) -> None:
    found = list(divide(pieces, size))
    parts = [part for bucket, _ in found for part in bucket]
    assert [part.piece for part in parts] == sorted(part.piece for part in parts)
    for index, (box, _, _) in enumerate(pieces):
        mine = [part.box for part in parts if part.piece == index]
        assert (covered(mine, whole(box.sizes)) == 1).all()
        assert mine or not box.count
    for bucket, offsets in found:
        assert bucket
        end = 0
        for part, offset in zip(bucket, offsets, strict=True):
            assert offset % 64 == 0
            assert offset >= end
            end = offset + part.box.count * pieces[part.piece][2]
        assert end <= size


def test_what_is_cut_leaves_little_room() -> None:
    found = list(divide([(whole((4096, 4096)), (256, 256), 4)], 8 * MIB))
    full = [sum(part.box.count * 4 for part in parts) for parts, _ in found]
    assert min(full[:-1]) > 0.7 * 8 * MIB


# --- BucketStager -------------------------------------------------------------------------------


class Reader:
    """Has some buckets in its hands before it reads the oldest."""

    def __init__(self, stager: BucketStager, pieces: list[StagePiece]) -> None:
        self.stager, self.pieces = stager, pieces
        self.read = [np.zeros(_shape(piece), _bits(piece)) for piece in pieces]
        self.times = [np.zeros(_shape(piece), np.int64) for piece in pieces]
        self.unread: deque[Bucket] = deque()
        self.seen: list[Bucket] = []
        self.fresh = deque(range(stager.buckets))

    def send(self, bucket: Bucket) -> None:
        self.unread.append(bucket)
        self.seen.append(bucket)

    def free(self) -> int:
        return self.fresh.popleft() if self.fresh else self.empty()

    def empty(self) -> int:
        bucket = self.unread.popleft()
        content = bucket.content
        for entry, part in zip(content.entries, bucket.parts, strict=True):
            assert entry.shape == part.box.sizes
            length = part.box.count * element(entry.dtype).itemsize
            cells = self.stager.arena.view(content.start + entry.offset, length)
            view = cells.view(_bits(self.pieces[part.piece])).reshape(entry.shape)
            self.read[part.piece][part.box.slices] = view
            self.times[part.piece][part.box.slices] += 1
        return content.slot


def _shape(piece: StagePiece) -> Shape:
    return tuple(piece.tensor.shape) if piece.box is None else piece.box.sizes


def _bits(piece: StagePiece) -> np.dtype[np.generic]:
    return element(str(piece.tensor.dtype).removeprefix("torch.")).bits


def state() -> list[StagePiece]:
    torch.manual_seed(0)
    big = torch.randn(2048, 1536)
    return [
        StagePiece("big", big),
        StagePiece("step", torch.tensor(3.0)),
        StagePiece("empty", torch.empty(0, 4)),
        StagePiece("part", big.t(), Box((5, 100), (900, 1000)), (3000, 4000), (77, 13)),
        StagePiece("half", torch.randn(1000, 999).bfloat16()),
        StagePiece("flags", torch.randn(100_001) > 0),
    ]


def test_all_cells_arrive_through_less_memory() -> None:
    pieces, stager = state(), BucketStager()
    size = sum(math.prod(_shape(p)) * p.tensor.element_size() for p in pieces)
    assert stager.prepare(pieces)
    assert stager.arena.size <= 0.3 * size
    reader = Reader(stager, pieces)
    assert stager.stage_bucketed(pieces, reader.send, reader.free) == size
    while reader.unread:
        reader.empty()
    assert len(reader.seen) > stager.buckets  # buckets were used again
    assert [b.number for b in reader.seen] == list(range(len(reader.seen)))
    assert [b.is_last for b in reader.seen] == [False] * (len(reader.seen) - 1) + [True]
    assert sum(b.content.bytes for b in reader.seen) == size
    for piece, read, reads in zip(pieces, reader.read, reader.times, strict=True):
        cells = piece.tensor if piece.box is None else piece.tensor[piece.box.slices]
        flat = cells.contiguous().view(-1).view(torch.uint8)
        assert read.tobytes() == flat.numpy().tobytes(), piece.name
        assert (reads == 1).all()
    stager.close()


def test_a_part_is_cut_along_the_whole_tensors_tiles() -> None:
    pieces, stager = state(), BucketStager()
    stager.prepare(pieces)
    reader = Reader(stager, pieces)
    stager.stage_bucketed(pieces, reader.send, reader.free)
    place = Box((77, 13), (900, 1000))
    found = [p.box for b in reader.seen for p in b.parts if pieces[p.piece].name == "part"]
    assert len(found) > 1
    for tile in tiles(place, tile_shape((3000, 4000), 4)):
        holders = [box for box in found if box.intersect(tile.relative_to(place)) is not None]
        assert len(holders) == 1
    stager.close()


def test_the_arena_stays_while_sizes_do() -> None:
    pieces, stager = state(), BucketStager()
    assert stager.prepare(pieces)
    arena = stager.arena
    assert not stager.prepare(pieces)
    assert stager.arena is arena
    stager.close()
    with pytest.raises(StageError, match="call prepare"):
        _ = stager.arena


def test_what_free_raises_ends_it() -> None:
    class GoneError(Exception): ...

    def gone() -> int:
        raise GoneError

    stager = BucketStager()
    with pytest.raises(GoneError):
        stager.stage_bucketed(state(), lambda bucket: None, gone)
    with pytest.raises(ValueError, match=r"free\(\) gave 2: buckets are 0 to 1"):
        stager.stage_bucketed(state(), lambda bucket: None, lambda: 2)
    stager.close()


def test_memory_is_asked_for_first() -> None:
    def refuse(size: int, count: int) -> None:
        raise StageError(f"{count} x {size}")

    with pytest.raises(StageError, match=r"2 x \d+"):
        BucketStager(require=refuse).prepare(state())
