"""The layout of a slot, which holds one snapshot in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkpointing.format.tiles import Shape

PAGE = 4096  # bytes
LINE = 64  # bytes of a cache line, which no two tensors share
_LARGE = 1 << 20  # bytes above which an entry begins on a page boundary


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Lays out entries of these sizes in a slot.

    Args:
        sizes: bytes of each entry.

    Returns:
        The offset of each entry from the slot's start, and the size of a slot, a multiple of the
        page size; all in bytes.
    """
    offsets, end = [], 0
    for size in sizes:
        offsets.append(next_offset(end, size))
        end = offsets[-1] + size
    return offsets, round_up(end, PAGE)


def next_offset(end: int, size: int) -> int:
    """Returns the offset of an entry of `size` bytes that follows one that ends at `end`."""
    return round_up(end, PAGE if size > _LARGE else LINE)


def round_up(size: int, unit: int) -> int:
    """Returns the smallest multiple of `unit` that is not less than `size`."""
    return -(-size // unit) * unit


@dataclass(frozen=True)
class SlotEntry:
    """A box of cells in a slot, in C order without gaps."""

    name: str  # name of the tensor; several entries may be boxes of one tensor
    dtype: str  # torch's name
    shape: Shape
    offset: int  # bytes from the slot's start


@dataclass(frozen=True)
class StagedSnapshot:
    """A snapshot that is whole in a slot. Plain data, for any process that maps the same memory.

    Attributes:
        arena: number of the stager's arena, counted from 1; another number means other memory.
        start: offset of the slot from the arena's start, in bytes.
        entries: the entries, in the order of the pieces that were staged.
        bytes: size of the cells, without the gaps between entries.
    """

    arena: int
    slot: int
    start: int
    entries: tuple[SlotEntry, ...]
    bytes: int
