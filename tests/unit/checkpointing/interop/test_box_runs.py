"""Boxes of tensors as runs of a file: against numpy, for any box of any shape."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing import DamagedError
from checkpointing.format.tiles import Box, tile_shape, tiles, whole
from checkpointing.interop.atomic_files import InputFile, new_files
from checkpointing.interop.box_runs import read_box, runs, widened, write_box

SHAPES = st.lists(st.integers(1, 6), max_size=4).map(tuple)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Box]:
    shape = draw(SHAPES)
    offsets = tuple(draw(st.integers(0, n - 1)) for n in shape)
    sizes = tuple(draw(st.integers(1, n - o)) for n, o in zip(shape, offsets, strict=True))
    return shape, Box(offsets, sizes)


@given(boxes())
def test_runs_are_the_elements_of_the_box(case: tuple[tuple[int, ...], Box]) -> None:
    shape, box = case
    numbers = np.arange(math.prod(shape)).reshape(shape)[box.slices].reshape(-1).tolist()
    found = list(runs(box, shape))
    assert [n for start, _, count in found for n in range(start, start + count)] == numbers
    assert [at for _, at, _ in found] == [i * found[0][2] for i in range(len(found))]


def test_runs_are_as_long_as_they_can_be() -> None:
    assert list(runs(Box((1, 0, 0), (2, 4, 5)), (3, 4, 5))) == [(20, 0, 40)]
    assert list(runs(Box((0, 1, 0), (2, 2, 5)), (3, 4, 5))) == [(5, 0, 10), (25, 10, 10)]
    assert list(runs(Box((0, 0, 0), (0, 4, 5)), (3, 4, 5))) == []
    assert list(runs(Box((), ()), ())) == [(0, 0, 1)]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=3).map(tuple), st.integers(1, 1 << 22))
def test_widened_tiles_stay_on_the_grid(shape: tuple[int, ...], limit: int) -> None:
    tile = tile_shape(shape, 4)
    extents = widened(tile, shape, limit)
    assert math.prod(extents) <= max(limit, math.prod(tile))
    for wide, side, size in zip(extents, tile, shape, strict=True):
        assert wide == size or (wide % side == 0 and wide >= side)
    if math.prod(shape) <= limit:
        assert extents == shape


def test_boxes_go_into_a_file_and_come_back(tmp_path: Path) -> None:
    shape, tile, at = (37, 11, 5), (10, 4, 5), 3
    data = np.random.default_rng(1).integers(0, 1 << 16, shape, np.uint16)
    with new_files([tmp_path / "new" / "x"]) as (file,):
        for box in tiles(whole(shape), tile):
            write_box(file, at, shape, 2, box, np.ascontiguousarray(data[box.slices]).tobytes())
        assert not (tmp_path / "new" / "x").exists()
    assert (tmp_path / "new" / "x").read_bytes() == bytes(at) + data.tobytes()
    with InputFile(tmp_path / "new" / "x") as source:
        for box in tiles(whole(shape), (9, 9, 2)):
            into = bytearray(box.count * 2)
            read_box(source, at, shape, 2, box, memoryview(into))
            assert bytes(into) == np.ascontiguousarray(data[box.slices]).tobytes()
        with pytest.raises(DamagedError, match="is cut off"):
            read_box(source, at + 1, shape, 2, whole(shape), memoryview(bytearray(data.nbytes)))


def test_files_that_fail_leave_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with new_files([tmp_path / "a", tmp_path / "b"]) as files:
            files[0].write_at(0, b"half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "b").write_bytes(b"there")
    with pytest.raises(FileExistsError, match="b already exists"), new_files([tmp_path / "b"]):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
