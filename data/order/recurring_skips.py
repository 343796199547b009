"""Samples that are left out of an order from some positions on: there, and in every later epoch, in
which they have other positions. Pure, and the same on any number of ranks.

All is computed from the ranges of positions that are in a loader's state and from the order, so
the state does not grow with the epochs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from data.order.keyed_permutation import Ints
from data.order.mixture import Mixture
from data.order.sample_order import MAX_POSITION, Order
from data.order.skipped_ranges import SkippedRanges

_KEEP = 4  # epochs
_MOST_AT_A_TIME = 1 << 18  # positions
_NO_EPOCH = MAX_POSITION + 1


class RecurringSkips(SkippedRanges):
    """The ranges `skipped` of positions of `order`, and in every later epoch the positions that
    their samples have there.

    It is equal to `SkippedRanges` of the same ranges, of which it is a function. Raises ValueError
    if no sample would be left, unless `may_end`: `kept_at` and what needs it cannot be used then.
    """

    def __init__(self, skipped: SkippedRanges, order: Order, *, may_end: bool = False) -> None:
        super().__init__(skipped.ranges)
        self._order = order
        self._firsts_of_samples = np.concatenate([[0], np.cumsum(order.counts)])
        self._numbers, self._epochs = self._left_out()
        self._cached: dict[int, Ints] = {}
        alike = max([order.last_change, *self._epochs[-1:].tolist()]) + 1
        """The first epoch from which on all epochs have, and leave out, the same samples."""
        # each sample is left out once in each epoch from its first one on
        sizes = np.searchsorted(self._epochs, np.arange(alike + 1), side="right")
        self._before = np.concatenate([[0], np.cumsum(sizes[:-1])])
        """Positions left out before each epoch up to `alike`, shape (alike + 1,)."""
        begins = np.array([order.epoch_begin(epoch) for epoch in range(alike + 1)])
        self._kept_begins = begins - self._before
        """The number of the first kept position of each of these epochs."""
        self._each = int(sizes[-1])
        """Number of positions that are left out in each later epoch."""
        self.is_ended = self._each >= order.samples
        """Whether no sample is left in later epochs."""
        self._end_epoch = alike if self.is_ended else _NO_EPOCH
        """The first epoch from which on all positions are left out; no order of those is needed."""
        if self.is_ended and not may_end:
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
            earlier = self._numbers[: np.searchsorted(self._epochs, epoch)]
            if earlier.size:
                starts = self._firsts_of_samples
                shards = np.searchsorted(starts, earlier, side="right") - 1
                parts.append(self._order.positions_in(epoch, shards, earlier - starts[shards]))
            found = np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)
            self._cached = {**dict(list(self._cached.items())[1 - _KEEP :]), epoch: found}
        return found

    def are_skipped(self, positions: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Return whether each position is left out, with their shape."""
        epochs = self._order.epochs_of(positions)
        found = epochs >= self._end_epoch
        for epoch in np.unique(epochs[~found]).tolist():
            here, skipped = epochs == epoch, self.of_epoch(epoch)  # in order: no need to sort
            at = np.searchsorted(skipped, positions[here], side="right") - 1
            found[here] = skipped[at] == positions[here] if skipped.size else False
        return found

    def kept_before(self, position: int) -> int:
        """Return how many positions below `position` are kept."""
        epoch = self._order.epoch_of(position)
        if epoch >= self._end_epoch:
            return int(self._kept_begins[-1])
        before = self._skipped_before(epoch)
        if position == self._order.epoch_begin(epoch):  # no order of that epoch is needed
            return position - before
        return position - before - int(np.searchsorted(self.of_epoch(epoch), position))

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

    def _left_out(self) -> tuple[Ints, Ints]:
        """Return (number in the dataset, first epoch in which it is left out) of each sample in a
        range, by epoch; both with shape (samples,)."""
        order, numbers, epochs = self._order, [], []
        for first, last in self.ranges:
            for epoch in range(order.epoch_of(first), order.epoch_of(last - 1) + 1):
                begin = max(first, order.epoch_begin(epoch))
                end = min(last, order.epoch_begin(epoch + 1))
                shards, samples = order.locate(np.arange(begin, end))
                numbers.append(self._firsts_of_samples[shards] + samples)
                epochs.append(np.full(end - begin, epoch))
        if not numbers:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        found, first_at = np.unique(np.concatenate(numbers), return_index=True)
        first_epochs = np.concatenate(epochs)[first_at]  # ranges are in order: the earliest one
        by_epoch = np.argsort(first_epochs, kind="stable")
        return found[by_epoch], first_epochs[by_epoch]

    def _skipped_before(self, epoch: int) -> int:
        """Return how many positions are left out before an epoch."""
        alike = self._before.size - 1
        more = max(0, epoch - alike) * self._each
        return int(self._before[min(epoch, alike)]) + more

    def _epochs_of(self, numbers: Ints) -> Ints:
        """Return the epoch of each kept position by its number."""
        begins = self._kept_begins
        alike = begins.size - 1
        epochs = np.searchsorted(begins, numbers, side="right") - 1
        later = alike + (numbers - begins[alike]) // (self._order.samples - self._each)
        return np.where(epochs >= alike, later, epochs)


class MixedSkips(SkippedRanges):
    """The ranges `skipped` of positions of a mixture, and in every later epoch of each dataset the
    samples that were there. It is equal to `SkippedRanges` of the same ranges.

    A dataset whose samples are all left out ends: others come in the order in which they would have
    come. Raises ValueError if every dataset ends that has a weight in the last segment.
    """

    def __init__(self, skipped: SkippedRanges, orders: Sequence[Order], mixture: Mixture) -> None:
        super().__init__(skipped.ranges)
        self._mixture = mixture
        # positions of a dataset come in order: those in a range of the mixture are a range, too
        own = [(mixture.consumed(first), mixture.consumed(end)) for first, end in self.ranges]
        self._skips = [
            RecurringSkips(
                SkippedRanges((a[n], b[n]) for a, b in own if a[n] < b[n]), order, may_end=True
            )
            for n, order in enumerate(orders)
        ]
        last = mixture.segments[-1]
        each = zip(self._skips, last.parts, strict=True)
        if all(skips.is_ended for skips, part in each if part):
            raise ValueError(
                "all samples were left out of each dataset that has a weight from position "
                f"{last.position} on, and none would be left"
            )

    @property
    def ended(self) -> list[int]:
        """The numbers of the datasets whose samples are all left out."""
        return [number for number, skips in enumerate(self._skips) if skips.is_ended]

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
        found = np.empty(0, dtype=np.int64)
        width = max(64, 2 * (last - first + 1))
        while found.size <= last - first:
            begin = self._first_kept(first + found.size)
            more = np.arange(begin, begin + width)
            found = np.concatenate([found, more[~self._are_skipped(more)]])
            width = min(2 * width, _MOST_AT_A_TIME)  # few may be kept, where a dataset has ended
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
        least = position = number
        jump = 1 / 8  # so that a long range is not passed one position at a time
        while (lack := number + 1 - self.kept_before(position + 1)) > 0:
            least, jump = position + lack, 2 * jump
            position += max(lack, int(jump))
        within = range(least, position)
        return least + bisect_left(within, number + 1, key=lambda at: self.kept_before(at + 1))

    def _are_skipped(self, positions: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        datasets, own = self._mixture.locate(positions)
        found = np.zeros(positions.shape, dtype=np.bool_)
        for number, skips in enumerate(self._skips):
            here = datasets == number
            found[here] = skips.are_skipped(own[here])
        return found
