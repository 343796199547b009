"""How tensors are laid out in another format: under another name, transposed, or with their rows in
another order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.format.tiles import Box, Shape


@dataclass(frozen=True)
class TensorForm:
    """The form of one tensor in another format."""

    name: str  # name in the other format
    regrouped: tuple[int, int] = (1, 1)
    """(a, b): a groups of b parts of rows here are b groups of a parts in the other format."""
    is_transposed: bool = False

    def shape(self, shape: Shape) -> Shape:
        """Returns the shape in the other format of a tensor that has this shape here."""
        return shape[::-1] if self.is_transposed else shape

    def pieces(
        self, shape: Shape, box: Box, cells: NDArray[Any]
    ) -> Iterator[tuple[Box, NDArray[Any]]]:
        """Converts a box and its cells to the other format.

        Args:
            shape: shape of the whole tensor here.
            box, cells: a part of the tensor.
        """
        for there, part in self.views(shape, box, cells):
            yield there, np.ascontiguousarray(part)

    def views(
        self, shape: Shape, box: Box, cells: NDArray[Any]
    ) -> Iterator[tuple[Box, NDArray[Any]]]:
        """As `pieces`, but as views: what is written into them goes to its place in `cells`."""
        for offsets, part in self._moved(shape, box, cells):
            if self.is_transposed:
                offsets, part = offsets[::-1], part.T
            yield Box(offsets, part.shape), part

    def _moved(
        self, shape: Shape, box: Box, cells: NDArray[Any]
    ) -> Iterator[tuple[Shape, NDArray[Any]]]:
        groups, parts = self.regrouped
        if groups * parts == 1:
            yield box.offsets, cells
            return
        rows = shape[0] // (groups * parts)  # rows of a part
        first, end = box.offsets[0], box.offsets[0] + box.sizes[0]
        for number in range(first // rows, -(-end // rows)):
            begin, stop = max(first, number * rows), min(end, (number + 1) * rows)
            group, part = divmod(number, parts)
            there = (part * groups + group) * rows + begin - number * rows
            yield (there, *box.offsets[1:]), cells[begin - first : stop - first]
