"""Slots: equal places for snapshots, one after the other in shared memory, and what lies in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkpointing.format.tiles import Shape

PAGE = 4096  # bytes
LINE = 64  # bytes of a cache line; no two tensors share one
_LARGE = 1 << 20  # bytes; what is larger begins on a page


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where things of these sizes lie in a slot.

    Args:
        sizes: bytes.

    Returns:
        The offset of each from the slot's start, and the size of a slot: a multiple of the page.
        All in bytes.
    """
    offsets, end = [], 0
    for size in sizes:
        offsets.append(next_offset(end, size))
        end = offsets[-1] + size
    return offsets, round_up(end, PAGE)


def next_offset(end: int, size: int) -> int:
    """Where something of `size` bytes begins that follows what ends at `end`."""
    return round_up(end, PAGE if size > _LARGE else LINE)


def round_up(size: int, unit: int) -> int:
    """The least multiple of `unit` that is not below `size`."""
    return -(-size // unit) * unit


@dataclass(frozen=True)
class SlotEntry:
    """A box of cells in a slot, in C order without gaps."""

    name: str  # of the tensor; several entries may be boxes of one
    dtype: str  # torch's name
    shape: Shape
    offset: int  # bytes from the slot's start


@dataclass(frozen=True)
class StagedSnapshot:
    """A snapshot that is whole in a slot. Plain data, for whoever maps the same memory.

    Attributes:
        arena: number of the stager's arena, counted from 1: another number is another memory.
        start: of the slot, bytes from the arena's start.
        entries: in the order of the pieces that were staged.
        bytes: of the cells, without the gaps between entries.
    """

    arena: int
    slot: int
    start: int
    entries: tuple[SlotEntry, ...]
    bytes: int
