"""The slots of successive blocks of a mixture, sorted by dataset.

The slots of a dataset, in order, are those of successive positions of its own. So the table finds
the slot of an own position, and how many own positions come before any position, in less time than
it takes to find dataset and own position of each slot.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from data.order.keyed_permutation import Ints

Keys: TypeAlias = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]


class SortedSlots(NamedTuple):
    """The slots of R blocks of K positions of one segment, of D datasets."""

    begin: int
    """The position at which the first block begins."""
    block: int
    keys: Keys
    """Shape (R K,), rising: (number of the block here * D + dataset) * 2**bits + slot."""
    bits: int
    before: Ints
    """Shape (R + 1, D): the own position with which each dataset begins in each block."""
    shifts: Ints
    """Shape (R, D): what the place of a key is more than the own position."""

    def consumed(self, positions: Ints) -> Ints:
        """Return the own position of each dataset before each position, which is in the blocks or
        at their end; shape (n, D)."""
        blocks, slots = np.divmod(positions - self.begin, self.block)
        at_end = blocks == len(self.shifts)
        blocks -= at_end
        slots += self.block * at_end
        rows = blocks[:, None] * self.before.shape[1] + np.arange(self.before.shape[1])
        wanted = (rows << self.bits) + slots[:, None]
        places = np.searchsorted(self.keys, wanted.astype(self.keys.dtype))
        return np.asarray(places - self.shifts[blocks])

    def positions(self, datasets: Ints, own: Ints) -> Ints:
        """Return the position at which each own position of a dataset comes, in these blocks; all
        with shape (n,)."""
        width, before = self.before.shape[1], self.before.ravel()
        counts = self.before[-1] - self.before[0]
        blocks_of_one = len(self.shifts) / np.maximum(counts, 1)
        blocks = ((own - self.before[0][datasets]) * blocks_of_one[datasets]).astype(np.int64)
        np.minimum(blocks, len(self.shifts) - 1, out=blocks)
        rows = blocks * width + datasets
        while True:  # counts of blocks differ by one or two: once or twice
            more = (before[rows + width] <= own).astype(np.int64) - (before[rows] > own)
            if not more.any():
                break
            rows += more * width
        slots = self.keys[own + self.shifts.ravel()[rows]].astype(np.int64)
        slots &= (1 << self.bits) - 1
        found: Ints = self.begin + rows // width * self.block + slots
        return found


def sorted_keys(slots: npt.NDArray[np.uint32], counts: Ints, bits: int) -> Keys:
    """Return the keys of `SortedSlots`.

    Args:
        slots: of each block, laid out by dataset, with shape (R, K).
        counts: the slots of each dataset in each block, with shape (R, D).
    """
    kind = np.uint32 if counts.size << bits < 2**32 else np.uint64
    rows = np.arange(counts.size) << bits
    keys = np.repeat(rows.astype(kind), counts.ravel())
    keys |= slots.ravel()
    keys.reshape(slots.shape).sort(axis=1)
    return keys
