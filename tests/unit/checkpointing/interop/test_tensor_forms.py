"""Boxes of a tensor arrive where the whole of it, laid out anew, has them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.format.tiles import Box
from checkpointing.interop.tensor_forms import TensorForm


@given(
    groups=st.integers(1, 4),
    parts=st.integers(1, 3),
    rows=st.integers(1, 3),
    columns=st.none() | st.integers(1, 4),
    is_transposed=st.booleans(),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_pieces_make_up_the_whole(
    groups: int, parts: int, rows: int, columns: int | None, is_transposed: bool, cuts: list[int]
) -> None:
    shape = (groups * parts * rows, *([columns] if columns else []))
    here = np.arange(np.prod(shape)).reshape(shape)
    grouped = here.reshape(groups, parts, rows, *shape[1:]).swapaxes(0, 1)
    wanted = grouped.reshape(shape)
    wanted = wanted.T if is_transposed else wanted

    form = TensorForm("there", (groups, parts), is_transposed)
    there = np.full(form.shape(shape), -1)
    edges = sorted({0, shape[0], *(cut for cut in cuts if cut < shape[0])})
    for first, end in pairwise(edges):
        box = Box((first, *([0] * (len(shape) - 1))), (end - first, *shape[1:]))
        for at, cells in form.pieces(shape, box, here[box.slices]):
            assert cells.flags.c_contiguous
            assert cells.shape == at.sizes
            there[at.slices] = cells
    assert np.array_equal(there, wanted)
    back = np.full(shape, -1)
    for first, end in pairwise(edges):
        box = Box((first, *([0] * (len(shape) - 1))), (end - first, *shape[1:]))
        for at, view in form.views(shape, box, back[box.slices]):
            view[...] = there[at.slices]
    assert np.array_equal(back, here)
