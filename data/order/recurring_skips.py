"""Samples that are left out of an order from some positions on: there, and in every later epoch, in
which they have other positions. Pure, and the same on any number of ranks.

All is computed from the ranges of positions that are in a loader's state and from the order, so
the state does not grow with the epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.order.keyed_permutation import Ints
from data.order.mixture import Mixture
from data.order.sample_order import Order
from data.order.skipped_ranges import SkippedRanges

_KEEP = 4  # epochs


@dataclass(frozen=True)
class LeftOutSamples:
    """Samples of an order that are left out in the epochs after `epoch`."""

    epoch: int
    shards: Ints
    samples: Ints


class RecurringSkips(SkippedRanges):
    """The ranges `skipped` of positions of `order`, and in every later epoch the positions that
    their samples have there.

    It is equal to `SkippedRanges` of the same ranges, of which it is a function. Raises ValueError
    if no sample would be left.
    """

    def __init__(self, skipped: SkippedRanges, order: Order) -> None:
        super().__init__(skipped.ranges)
        self._order = order
        self._left_out = self._by_epoch()
        self._last = max([order.last_change, *(one.epoch for one in self._left_out)])
        """The last epoch in which a range is, or after which the dataset grows."""
        self._cached: dict[int, Ints] = {}
        self._before = [0]  # positions left out before each epoch up to the one after the last
        for epoch in range(self._last + 1):
            self._before.append(self._before[-1] + self.of_epoch(epoch).size)
        self._each = self.of_epoch(self._last + 1).size
        """Number of positions that are left out in each later epoch."""
        if self._each >= order.samples:
            raise ValueError(
                f"all {order.samples} samples of the dataset were left out, and none would be left"
            )

    def of_epoch(self, epoch: int) -> Ints:
        """Return the positions of an epoch that are left out, in order; shape (n,)."""
        found = self._cached.get(epoch)
        if found is None:
            begin, end = self._order.epoch_begin(epoch), self._order.epoch_begin(epoch + 1)
            parts = [
                np.arange(max(first, begin), min(last, end))
                for first, last in self.ranges
                if first < end and begin < last
            ]
            parts += [
                self._order.positions_in(epoch, one.shards, one.samples)
                for one in self._left_out
                if one.epoch < epoch
            ]
            found = np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)
            self._cached = {**dict(list(self._cached.items())[1 - _KEEP :]), epoch: found}
        return found

    def are_skipped(self, positions: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Return whether each position is left out, with their shape."""
        epochs = self._order.epochs_of(positions)
        found = np.zeros(positions.shape, dtype=np.bool_)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            found[here] = np.isin(positions[here], self.of_epoch(epoch))
        return found

    def kept_before(self, position: int) -> int:
        """Return how many positions below `position` are kept."""
        epoch = self._order.epoch_of(position)
        within = int(np.searchsorted(self.of_epoch(epoch), position))
        return position - self._skipped_before(epoch) - within

    def kept_at(self, numbers: Ints) -> Ints:
        """Return the position of each kept position by its number, counted from 0; in their
        shape."""
        asked = np.asarray(numbers, dtype=np.int64)
        epochs = self._epochs_of(asked)
        positions = np.empty_like(asked)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            begin = self._order.epoch_begin(epoch)
            inside = asked[here] - (begin - self._skipped_before(epoch))
            skipped = self.of_epoch(epoch) - begin
            begins = skipped - np.arange(skipped.size)
            positions[here] = begin + inside + np.searchsorted(begins, inside, side="right")
        return positions

    def later(self, position: int, count: int) -> int:
        """Return the position before which `count` more positions are kept than before `position`;
        `count` may be negative."""
        number = self.kept_before(position) + count
        return number if number < 0 else int(self.kept_at(np.array([number]))[0])

    def next_kept(self, position: int) -> int:
        """Return the first kept position from `position` on."""
        return int(self.kept_at(np.array([self.kept_before(position)]))[0])

    def _by_epoch(self) -> list[LeftOutSamples]:
        order, found = self._order, []
        for first, last in self.ranges:
            for epoch in range(order.epoch_of(first), order.epoch_of(last - 1) + 1):
                begin = max(first, order.epoch_begin(epoch))
                end = min(last, order.epoch_begin(epoch + 1))
                found.append(LeftOutSamples(epoch, *self._order.locate(np.arange(begin, end))))
        return found

    def _skipped_before(self, epoch: int) -> int:
        """Return how many positions are left out before an epoch."""
        known = len(self._before) - 1
        if epoch <= known:
            return self._before[epoch]
        return self._before[known] + (epoch - known) * self._each

    def _epochs_of(self, numbers: Ints) -> Ints:
        """Return the epoch of each kept position by its number."""
        known = len(self._before) - 1  # the first epoch of those that are alike
        every = np.array([self._order.epoch_begin(epoch) for epoch in range(known + 1)])
        begins = every - np.array(self._before)
        epochs = np.searchsorted(begins, numbers, side="right") - 1
        later = known + (numbers - begins[known]) // (self._order.samples - self._each)
        return np.where(epochs >= known, later, epochs)


class MixedSkips(SkippedRanges):
    """The ranges `skipped` of positions of a mixture, and in every later epoch of each dataset the
    samples that were there. It is equal to `SkippedRanges` of the same ranges."""

    def __init__(self, skipped: SkippedRanges, orders: Sequence[Order], mixture: Mixture) -> None:
        super().__init__(skipped.ranges)
        self._mixture = mixture
        positions = [np.arange(first, end) for first, end in self.ranges]
        datasets, own = mixture.locate(np.concatenate(positions))
        self._skips = [
            RecurringSkips(SkippedRanges((one, one + 1) for one in own[datasets == number]), order)
            for number, order in enumerate(orders)
        ]

    def kept_before(self, position: int) -> int:
        """Return how many positions below `position` are kept."""
        return int(self.consumed(position).sum())

    def consumed(self, position: int) -> Ints:
        """Return how many samples of each dataset are kept before `position`; shape (D,)."""
        own = self._mixture.consumed(position).tolist()
        each = zip(self._skips, own, strict=True)
        return np.array([skips.kept_before(one) for skips, one in each], dtype=np.int64)

    def kept_at(self, numbers: Ints) -> Ints:
        """Return the position of each kept position by its number, counted from 0; in their
        shape."""
        asked = np.asarray(numbers, dtype=np.int64)
        first, last = int(asked.min()), int(asked.max())
        begin = self._first_kept(first)
        found = np.empty(0, dtype=np.int64)
        while found.size <= last - first:
            more = np.arange(begin, begin + max(64, 2 * (last - first + 1 - found.size)))
            found = np.concatenate([found, more[~self._are_skipped(more)]])
            begin = int(more[-1]) + 1
        positions: Ints = found[asked - first]
        return positions

    def later(self, position: int, count: int) -> int:
        """Return the position before which `count` more positions are kept than before `position`;
        `count` may be negative."""
        number = self.kept_before(position) + count
        return number if number < 0 else self._first_kept(number)

    def next_kept(self, position: int) -> int:
        """Return the first kept position from `position` on."""
        return self._first_kept(self.kept_before(position))

    def _first_kept(self, number: int) -> int:
        """Return the kept position of this number: the least position before whose successor one
        more is kept."""
        position = number
        while (lack := number + 1 - self.kept_before(position + 1)) > 0:
            position += lack
        return position

    def _are_skipped(self, positions: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        datasets, own = self._mixture.locate(positions)
        found = np.zeros(positions.shape, dtype=np.bool_)
        for number, skips in enumerate(self._skips):
            here = datasets == number
            found[here] = skips.are_skipped(own[here])
        return found
