"""Which dataset each position of a block of a mixture is of: exact counts, shuffled by a key.

Every rank needs this of the positions of all ranks, or the inverse, so it takes as little work per
position as it can.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from data.order.keyed_permutation import Ints, derive, permute, root_key, whole_permutations
from data.order.mixed.sorted_slots import Slots

MIX_1: Final = "mix-1"
"""Frozen. States that earlier releases have saved are of it: each block has its own permutation."""
MIX: Final = "mix-2"
"""Frozen: the order of new runs. The blocks of a series share a permutation, which each shifts in
its own way: one for each block took more than half of the time of `Mixture.locate`."""
MIX_ORDERS: Final = (MIX_1, MIX)

PARTS = 10**9  # weights are whole parts of this, so that shares are exact; squares fit in int64
SERIES = 64
"""Blocks that share a permutation, of mix-2. A part of the order."""
_MIX, _SHIFTS = 2, 4  # purposes of keys
_AT_A_TIME = 2**15  # values that are permuted at a time, so that they stay in a core's cache
_TOGETHER = 2**13  # slots of permutations that are computed at a time, which takes as long as one
_KEEP = 2  # such groups of series: one may end inside of what is looked for
_32 = np.uint64(32)

Numbers: TypeAlias = npt.NDArray[np.integer]
"""Numbers of datasets, of the narrowest type: they are sorted sooner."""


class _Shift(NamedTuple):
    """How the permutation of a series is shifted in one block."""

    position: int
    """The position at which the group of series begins."""
    number: int
    """The number of the series in the group."""
    before: int
    after: int


class _Permutations(NamedTuple):
    """The permutations of a group of series."""

    places: Ints
    """Shape (series, 2 K): the place of each slot, twice in a row."""
    inverse: Slots
    """Shape (series, K + 1, K): the slots of the K places from each place on."""


class BlockShuffle:
    """The shuffle of the blocks of K positions of a mixture. Threads may share it.

    Args:
        order: one of `MIX_ORDERS`.
        datasets: the number of datasets.
    """

    def __init__(self, order: str, *, seed: int, block: int, datasets: int) -> None:
        self.order, self.block = order, block
        self._keys, self._shift_keys = root_key(seed, _MIX), root_key(seed, _SHIFTS)
        self._numbers = np.arange(datasets).astype(np.min_scalar_type(datasets))
        self._together = max(1, _TOGETHER // block)
        self._groups: dict[int, _Permutations] = {}
        """Groups of series by their first positions. The dict is replaced as a whole."""

    def datasets(self, begins: Ints, blocks: Ints, counts: Ints) -> Numbers:
        """Return the dataset of each slot of n blocks, with shape (n, K).

        Args:
            begins: the position at which the segment of each block begins, with shape (n,).
            blocks: their numbers in their segments, with shape (n,).
            counts: the slots of each dataset in each block, with shape (n, D).
        """
        return next(self.in_runs(begins, blocks, counts, blocks.size))

    def in_runs(self, begins: Ints, blocks: Ints, counts: Ints, each: int) -> Iterator[Numbers]:
        """Yield what `datasets` returns, of `each` blocks at a time."""
        shifts = self._shifts(begins, blocks) if self.order == MIX else []
        numbers = np.tile(self._numbers, min(each, blocks.size))
        for at in range(0, blocks.size, each):
            run = slice(at, at + each)
            slots = counts[run].ravel()
            laid_out = np.repeat(numbers[: slots.size], slots).reshape(-1, self.block)
            if self.order == MIX_1:
                yield self._permuted(laid_out, begins[run] + blocks[run] * self.block)
            else:
                yield self._shifted(laid_out, shifts[run])

    def slots_by_dataset(self, begins: Ints, blocks: Ints) -> Slots:
        """Return the slots of n blocks of mix-2, laid out by dataset, with shape (n, K): the
        inverse of the shuffle. Arguments as of `datasets`."""
        groups, numbers, before, after = self._shifts_of(begins, blocks)
        kind = _narrow(self.block)
        found: Slots = np.empty((blocks.size, self.block), dtype=kind)
        ends = np.flatnonzero(groups[1:] != groups[:-1]) + 1
        for first, end in pairwise([0, *ends.tolist(), blocks.size]):
            rows = slice(first, end)
            inverse = self._permutations(int(groups[first])).inverse
            found[rows] = inverse[numbers[rows], self.block - after[rows]]
        shifts: Slots = before.astype(kind)
        found -= shifts[:, None]
        if self.block & (self.block - 1) == 0:
            found &= kind(self.block - 1)
        else:  # numbers below 0 have become huge ones
            np.minimum(found, found + kind(self.block), out=found)
        return found

    def _permuted(self, laid_out: Numbers, positions: Ints) -> Numbers:
        """Permute each block by its own key, as mix-1 does."""
        found = np.empty_like(laid_out)
        most = max(1, _AT_A_TIME // self.block)
        for at in range(0, positions.size, most):
            rows = slice(at, at + most)
            keys = derive(self._keys, positions[rows])[:, None]
            slots = np.broadcast_to(np.arange(self.block), (keys.size, self.block))
            places = permute(slots, self.block, keys)
            places += np.arange(keys.size)[:, None] * self.block
            found[rows] = laid_out[rows].ravel()[places]
        return found

    def _shifts(self, begins: Ints, blocks: Ints) -> list[_Shift]:
        """Return how mix-2 shifts each block."""
        return [*map(_Shift, *(each.tolist() for each in self._shifts_of(begins, blocks)))]

    def _shifts_of(self, begins: Ints, blocks: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the fields of `_Shift` of each block, each with shape (n,)."""
        size = np.uint64(self.block)
        words = derive(self._shift_keys, begins + blocks * self.block)
        before = ((words >> _32) * size) >> _32
        after = ((words & np.uint64(2**32 - 1)) * size) >> _32
        groups, numbers = np.divmod(blocks // SERIES, self._together)
        positions = begins + groups * (self._together * SERIES * self.block)
        return positions, numbers, before.view(np.int64), after.view(np.int64)

    def _shifted(self, laid_out: Numbers, shifts: Sequence[_Shift]) -> Numbers:
        """Permute each block by the permutation of its series between two shifts, as mix-2 does."""
        twice = np.concatenate([laid_out, laid_out], axis=1)
        found, block, group_at = np.empty_like(laid_out), self.block, -1
        for row, (position, number, before, after) in enumerate(shifts):
            if position != group_at:
                group, group_at = self._permutations(position).places, position
            # all places are within the row, so "clip" changes none, and needs no copy
            places = group[number, before : before + block]
            twice[row, after : after + block].take(places, out=found[row], mode="clip")
        return found

    def _permutations(self, position: int) -> _Permutations:
        """Return the permutations of the group of series that begins at a position."""
        found = self._groups.get(position)
        if found is None:
            begins = position + np.arange(self._together) * (SERIES * self.block)
            each = whole_permutations(self.block, derive(self._keys, begins))
            places = np.concatenate([each, each], axis=1)
            inverse = np.empty_like(places, dtype=_narrow(self.block))
            np.put_along_axis(inverse, each, np.arange(self.block), axis=1)
            inverse[:, self.block :] = inverse[:, : self.block]
            found = _Permutations(places, sliding_window_view(inverse, self.block, axis=1))
            kept = list(self._groups.items())[1 - _KEEP :]
            self._groups = {**dict(kept), position: found}
        return found


def _narrow(block: int) -> type[np.uint16] | type[np.uint32]:
    """Return the type of slots of a block, which has room for twice as many."""
    return np.uint16 if 2 * block <= 2**16 else np.uint32


def apportion(totals: Ints, parts: Ints) -> Ints:
    """Split each total by `parts` by largest remainder, ties to the first; shape (n, D).

    The result grows with the total for every dataset that has at least one sample per block.
    """
    whole, rest = np.divmod(totals[:, None], PARTS)
    shares, remainders = np.divmod(rest * parts, PARTS)
    shares += whole * parts
    left = totals - shares.sum(axis=1)
    by_remainder = np.argsort(-remainders, axis=1, kind="stable")
    extra = (np.arange(parts.size) < left[:, None]).astype(np.int64)
    np.put_along_axis(remainders, by_remainder, extra, axis=1)
    return np.asarray(shares + remainders, dtype=np.int64)
