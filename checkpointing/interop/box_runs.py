"""Reads and writes boxes of row-major tensors in files, one contiguous run after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator

from checkpointing.format.tiles import Box, Shape
from checkpointing.interop.atomic_files import InputFile, OutputFile
from checkpointing.storage import Buffer


def runs(box: Box, shape: Shape) -> Iterator[tuple[int, int, int]]:
    """Yields the contiguous runs of a box, in row-major order: (first element in the tensor, first
    element in the box, number of elements)."""
    inner = len(shape)
    while inner and box.sizes[inner - 1] == shape[inner - 1]:
        inner -= 1
    # the `inner` leading dimensions are iterated over, the last of them in runs
    outer = max(inner - 1, 0)
    length = math.prod(box.sizes[outer:])
    if not box.count:
        return
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    base = sum(o * s for o, s in zip(box.offsets, strides, strict=True))
    starts = [base]
    for size, stride in zip(box.sizes[:outer], strides[:outer], strict=True):
        starts = [start + i * stride for start in starts for i in range(size)]
    for i, start in enumerate(starts):
        yield start, i * length, length


def widened(tile: Shape, shape: Shape, limit: int) -> Shape:
    """Returns the extents of several adjacent tiles, of at most `limit` elements or one tile. The
    last dimensions are extended first, so that runs are long."""
    extents = list(tile)
    for d in reversed(range(len(shape))):
        fitting = max(limit // max(math.prod(extents), 1), 1)
        extents[d] = min(extents[d] * fitting, shape[d])
        if extents[d] < shape[d]:
            break
    return tuple(extents)


def write_box(
    file: OutputFile, at: int, shape: Shape, itemsize: int, box: Box, raw: Buffer
) -> None:
    """Write a box of a tensor whose first byte is byte `at` of a file.

    Raises:
        OSError: writing failed; the message names the file.
    """
    data = memoryview(raw)
    for start, first, count in runs(box, shape):
        piece = data[first * itemsize : (first + count) * itemsize]
        file.write_at(at + start * itemsize, piece)


def read_box(
    file: InputFile, at: int, shape: Shape, itemsize: int, box: Box, into: memoryview
) -> None:
    """Read a box of a tensor whose first byte is byte `at` of a file into its bytes.

    Raises:
        DamagedError: the file ends before that.
        OSError: reading failed; the message names the file.
    """
    for start, first, count in runs(box, shape):
        piece = into[first * itemsize : (first + count) * itemsize]
        file.read_into(at + start * itemsize, piece)
