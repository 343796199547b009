"""Parts of an object that are made when they are written, so that they take no memory before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, overload

from checkpointing.storage.interface import Buffer


@dataclass(frozen=True)
class LazyPart:
    """A part that is made when it is asked for.

    Attributes:
        nbytes: its size.
        fill: writes its bytes into given memory of that size; every call writes the same bytes.
    """

    nbytes: int
    fill: Callable[[memoryview], None]

    def make(self) -> Buffer:
        """Return its bytes, in memory of their own."""
        import numpy as np  # not needed to import this, which private folders do at each start

        memory = np.empty(self.nbytes, np.uint8).data
        self.fill(memory)
        return memory


Part: TypeAlias = Buffer | LazyPart


class LazyParts(Sequence[Buffer]):
    """The parts of an object, for `Storage.put`. Each is made again whenever it is requested, so a
    storage that takes one after the other has few of them in memory. A storage that has memory to
    put them together in takes them from `parts` instead."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.nbytes = sum(map(part_size, parts))

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, index: int) -> Buffer: ...
    @overload
    def __getitem__(self, index: slice) -> LazyParts: ...
    def __getitem__(self, index: int | slice) -> Buffer | LazyParts:
        if isinstance(index, slice):
            return LazyParts(self.parts[index])
        part = self.parts[index]
        return part.make() if isinstance(part, LazyPart) else part


def part_size(part: Part) -> int:
    """Return the bytes of a part."""
    return part.nbytes if isinstance(part, LazyPart) else memoryview(part).nbytes


def total_size(parts: Sequence[Buffer]) -> int:
    """Return the bytes of all parts, without making them."""
    return parts.nbytes if isinstance(parts, LazyParts) else sum(map(part_size, parts))


def unmade(parts: Sequence[Buffer]) -> Sequence[Part]:
    """Return the same parts, of which none is made yet that needs not be."""
    return parts.parts if isinstance(parts, LazyParts) else parts
