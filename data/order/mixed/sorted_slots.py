"""The slots of successive blocks of a mixture, sorted by dataset.

The slots of a dataset, in order, are those of successive positions of its own. How many positions
each dataset has before each block follows from the weights alone, so the block of an own position
does too: only blocks of which a slot is asked for are shuffled and sorted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from data.order.keyed_permutation import Ints

_AT_A_TIME = 2**16  # slots that are sorted at a time, so that they stay in a core's cache

Slots: TypeAlias = npt.NDArray[np.unsignedinteger]
"""Numbers of slots; of 16 bits if blocks are small enough, else of 32."""
Keys: TypeAlias = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]


class SortedSlots(NamedTuple):
    """The slots of n blocks of R, of D datasets."""

    keys: Keys
    """Shape (n K,), rising: (number of the block among the n * D + dataset) * 2**bits + slot."""
    bits: int
    rows: Ints
    """Shape (R,): the number of each block among the n; of others, any."""
    begins: Ints
    """Shape (n, D): the place in `keys` of the first slot of each dataset."""

    def slots(self, blocks: Ints, datasets: Ints, numbers: Ints) -> Ints:
        """Return the slot of each dataset's sample of this number in a block; all with shape
        (m,)."""
        places = self.begins[self.rows[blocks], datasets] + numbers
        found: Ints = self.keys[places].astype(np.int64)
        found &= (1 << self.bits) - 1
        return found

    def counts_before(self, blocks: Ints, slots: Ints) -> Ints:
        """Return how many samples each dataset has before a slot of a block; shape (m, D)."""
        rows, width = self.rows[blocks], self.begins.shape[1]
        of = rows[:, None] * width + np.arange(width)
        wanted = (of << self.bits) + slots[:, None]
        places = np.searchsorted(self.keys, wanted.astype(self.keys.dtype))
        return np.asarray(places - self.begins[rows])


class BlockRange(NamedTuple):
    """R successive blocks of K positions of one segment, of D datasets."""

    begin: int
    """The position at which the first block begins."""
    block: int
    before: Ints
    """Shape (R + 1, D): the own position with which each dataset begins in each block."""
    slots_of: Callable[[Ints], Slots]
    """Returns the slots of n blocks, given by their numbers here, laid out by dataset, with shape
    (n, K)."""

    def sorted(self, blocks: Ints) -> SortedSlots:
        """Return the sorted slots of these blocks, given by rising numbers."""
        counts = self.before[blocks + 1] - self.before[blocks]
        bits = (self.block - 1).bit_length()
        rows = np.zeros(len(self.before) - 1, dtype=np.int64)
        rows[blocks] = np.arange(blocks.size)
        ends = np.cumsum(counts).reshape(counts.shape)
        return SortedSlots(self._keys(blocks, counts, bits), bits, rows, ends - counts)

    def sorted_all(self) -> SortedSlots:
        """Return the sorted slots of all blocks."""
        return self.sorted(np.arange(len(self.before) - 1))

    def _keys(self, blocks: Ints, counts: Ints, bits: int) -> Keys:
        """Return the keys of blocks, given the slots of each dataset in each, with shape (n, D)."""
        kind = np.uint32 if counts.size << bits < 2**32 else np.uint64
        firsts = (np.arange(counts.size) << bits).astype(kind).reshape(counts.shape)
        keys = np.empty((blocks.size, self.block), dtype=kind)
        each = max(1, _AT_A_TIME // self.block)
        for at in range(0, blocks.size, each):
            part = slice(at, at + each)
            laid_out = np.repeat(firsts[part].ravel(), counts[part].ravel())
            slots = self.slots_of(blocks[part])
            np.bitwise_or(laid_out.reshape(slots.shape), slots, out=keys[part])
            keys[part].sort(axis=1)
        return keys.ravel()

    def own_before(self, positions: Ints, known: SortedSlots | None = None) -> Ints:
        """Return the own position of each dataset before each position, which is in the blocks or
        at their end; shape (n, D).

        Args:
            known: the sorted slots of all blocks, if they are known.
        """
        blocks, slots = np.divmod(positions - self.begin, self.block)
        found: Ints = self.before[blocks]
        cut = np.flatnonzero(slots)
        if cut.size:
            if known is None:
                known = self.sorted(np.unique(blocks[cut]))
            found[cut] += known.counts_before(blocks[cut], slots[cut])
        return found

    def blocks_of(self, datasets: Ints, own: Ints) -> Ints:
        """Return the number here of the block of each own position of a dataset; all with shape
        (m,)."""
        width, before = self.before.shape[1], self.before.ravel()
        most = len(self.before) - 2
        counts = self.before[-1] - self.before[0]
        blocks_of_one = (most + 1) / np.maximum(counts, 1)
        blocks = ((own - self.before[0][datasets]) * blocks_of_one[datasets]).astype(np.int64)
        np.minimum(blocks, most, out=blocks)
        rows = blocks * width + datasets
        while True:  # counts of blocks differ by one or two: once or twice
            more = (before[rows + width] <= own).astype(np.int64) - (before[rows] > own)
            if not more.any():
                break
            rows += more * width
        return np.asarray(rows // width)
