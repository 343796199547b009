"""The orders of several datasets under one mixture."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from data.order.keyed_permutation import Ints
from data.order.mixed.step_entries import MOST_STREAMS, StepEntries, entries_of_steps
from data.order.mixture import LocatedRange, Mixture
from data.order.sample_order import MAX_POSITION, EpochLookup, Order, fill
from data.order.virtual_streams import distinct, located_jointly

_BLOCK = 2**18  # positions that are located at a time; not fewer than a loader looks for
_STEPS_BLOCK = 2**20  # positions of steps whose entries are found at a time
_MOST_PLACES = 2**16  # of streams, so that 16 bits are sorted
_MOST_COPIED = 4  # pieces of epochs, for each position that is looked for in several of them
_MOST_COUNTED = 2  # streams of datasets, for each position of a step, that are counted
_LEAST_RANKS = 4  # of which one takes entries; more of them are sorted in less time

_Places: TypeAlias = npt.NDArray[np.uint16]


class MixedOrder:
    """The orders of several datasets under one mixture: position to (dataset, shard, sample)."""

    samples = MAX_POSITION

    def __init__(self, orders: Sequence[Order], mixture: Mixture) -> None:
        if len(orders) != mixture.datasets:
            raise ValueError(f"{mixture.datasets} datasets are mixed, {len(orders)} orders given")
        self.orders = tuple(orders)
        self.mixture = mixture
        self._samples = np.array([order.samples for order in orders], dtype=np.int64)
        self._pieces = np.array([order.counts.size + order.streams for order in orders])
        self._are_alike = all(type(order) is Order and order.shuffle for order in orders)
        """Whether all have epochs of one length, and are shuffled."""
        streams = {order.streams for order in orders}
        self._have_same_streams = len(streams) == 1 and max(streams) <= MOST_STREAMS
        self._places = _places_of_streams([order.streams for order in orders])
        self._placed: tuple[LocatedRange, _Places] | None = None
        """The newest range, and the place of the stream of each of its slots; replaced as a
        whole."""
        self._turns: list[tuple[int, _Places] | None] = [None] * len(orders)
        """The newest epoch of each dataset, and the places of its streams in the order of their
        turns, many times in a row; replaced as a whole."""

    def locate(self, positions: npt.ArrayLike) -> tuple[Ints, Ints, Ints]:
        """Return (dataset, shard, sample in the shard) of each position, in their shape."""
        datasets, own = self.mixture.locate(positions)
        return datasets, *self.locate_own(datasets, own)

    def locate_own(self, datasets: Ints, own: Ints) -> tuple[Ints, Ints]:
        """Return (shard, sample in the shard) of positions of datasets' own streams, in their
        shape."""
        shards, samples = np.empty(own.size, np.int64), np.empty(own.size, np.int64)
        for at in range(0, own.size, _BLOCK):
            part = slice(at, at + _BLOCK)
            each = datasets.flat[part], own.flat[part]
            if (found := self._jointly(*each)) is not None:
                shards[part], samples[part] = found
            else:
                fill(shards[part], samples[part], self._lookups(*each))
        return shards.reshape(own.shape), samples.reshape(own.shape)

    def _jointly(self, datasets: Ints, own: Ints) -> tuple[Ints, Ints] | None:
        """Return (shard, sample in the shard) of positions of datasets' own streams, with shape
        (n,), of all datasets together; None if their epochs have many more pieces."""
        count = len(self.orders)
        if not self._are_alike:
            return None
        epochs, within = np.divmod(own, self._samples[datasets])
        if int(epochs.max()) >= MAX_POSITION // count:
            return None
        lowest = int(epochs.min())
        different, which = distinct((epochs - lowest) * count + datasets)
        numbers, of = np.divmod(different, count)
        numbers += lowest
        if int(self._pieces[of].sum()) > _MOST_COPIED * own.size:
            return None
        plans = []
        for number, order in zip(numbers.tolist(), (self.orders[one] for one in of), strict=True):
            plans.append((*order.plan(number), order.turns(number)))
        return located_jointly(plans, which, within)

    def _lookups(self, datasets: Ints, own: Ints) -> list[EpochLookup]:
        """Return the lookups of positions of datasets' own streams, with shape (n,)."""
        by_dataset, parts = self._by_order(datasets)
        own = own[by_dataset]
        return [
            replace(lookup, here=by_dataset[part][lookup.here])
            for order, part in parts
            for lookup in order.lookups(own[part])
        ]

    def stream_of(self, positions: npt.ArrayLike) -> Ints:
        """Return in 0..2**20 - 1 where each position's stream is among the streams of its dataset,
        so that equal shares of each dataset go to equal shares of the ranks."""
        datasets, own = self.mixture.locate(positions)
        by_dataset, parts = self._by_order(datasets.ravel())
        sorted_own, places = own.ravel()[by_dataset], np.empty(own.size, np.int64)
        for order, part in parts:
            sorted_own[part] = order.streams_at(sorted_own[part]) * 2**20 // order.streams
        places[by_dataset] = sorted_own
        return places.reshape(own.shape)

    def placement_of(self, positions: npt.ArrayLike) -> npt.NDArray[np.integer]:
        """Return numbers that sort positions as those of `stream_of` do, in less time."""
        asked = np.asarray(positions)
        flat = asked.ravel()
        found = self.mixture.range_of(flat) if flat.size else None
        if found is None or self._places is None:
            return self.stream_of(asked)
        placed = self._placed
        if placed is None or placed[0] is not found:
            placed = self._placed = found, self._places_in(found, self._places)
        first = int(flat[0]) - found.begin
        if int(flat[-1]) - int(flat[0]) == flat.size - 1 and bool((flat[1:] > flat[:-1]).all()):
            return placed[1][first : first + flat.size].reshape(asked.shape)  # without gaps
        places: _Places = placed[1][asked - found.begin]
        return places

    def entries_of(
        self, position: int, size: int, steps: int, entries: range
    ) -> StepEntries | None:
        """Return some entries of each of `steps` steps of `size` positions, the first of which
        begins at `position`, sorted by `stream_of` and then by position, with shape (steps,
        entries). The others are only counted. None: to sort them takes less time, or there is no
        other way."""
        streams = len(self.orders) * self.orders[0].streams
        is_little = size * _MOST_COUNTED >= streams and size >= _LEAST_RANKS * len(entries) > 0
        if not (is_little and self._are_alike and self._have_same_streams):
            return None
        found, each = [], max(1, _STEPS_BLOCK // size)
        for step in range(0, steps, each):
            count = min(each, steps - step)
            begin = position + step * size
            blocks = self.mixture.block_range(begin, begin + count * size - 1)
            part = blocks and entries_of_steps(blocks, self.orders, begin, size, count, entries)
            if part is None:
                return None
            found.append(part)
        return StepEntries(*(np.concatenate(columns) for columns in zip(*found, strict=True)))

    def _places_in(self, found: LocatedRange, places: Sequence[_Places]) -> _Places:
        """Return the place of the stream of each slot of a range."""
        slots = np.empty(found.ranks.size, dtype=np.uint16)
        begins = range(0, slots.size, found.run)
        each = zip(begins, found.first.tolist(), found.counts.tolist(), strict=True)
        for at, first, counts in each:
            run = slice(at, at + found.run)
            columns = enumerate(zip(places, first, counts, strict=True))
            # sorted by dataset, as ranks are
            of_ranks = [part for d, column in columns for part in self._places_from(d, *column)]
            np.concatenate(of_ranks).take(found.ranks[run], out=slots[run], mode="clip")
        return slots

    def _places_from(
        self, dataset: int, places: _Places, position: int, count: int
    ) -> Iterator[_Places]:
        """Yield the places of the streams of `count` own positions of a dataset from one on, an
        epoch at a time."""
        order = self.orders[dataset]
        if not self._are_alike:
            yield places[order.streams_at(np.arange(position, position + count))]
            return
        epoch, within = divmod(position, order.samples)
        while count > 0:
            taken = min(count, order.samples - within)
            begin = within % order.streams
            kept = self._turns[dataset]
            if kept is None or kept[0] != epoch or kept[1].size < begin + taken:
                turns = places[order.turns(epoch).streams]
                times = -(-2 * (turns.size + taken) // turns.size)
                kept = self._turns[dataset] = epoch, np.tile(turns, times)
            yield kept[1][begin : begin + taken]
            epoch, within, count = epoch + 1, 0, count - taken

    def _by_order(self, datasets: Ints) -> tuple[Ints, list[tuple[Order, slice]]]:
        """Return the numbers that sort `datasets`, with shape (n,), and of each order that is in
        it, where it is then."""
        narrow = datasets.astype(np.min_scalar_type(len(self.orders)))
        by_dataset = np.argsort(narrow, kind="stable")
        ends = np.cumsum([0, *np.bincount(datasets, minlength=len(self.orders)).tolist()])
        each = zip(self.orders, pairwise(ends), strict=True)
        return by_dataset, [(order, slice(*of)) for order, of in each if of[0] < of[1]]


def _places_of_streams(streams: Sequence[int]) -> list[_Places] | None:
    """Return the place of each stream of each dataset among those of all, sorted as
    `MixedOrder.stream_of` has them, where equal ones have one place. None if there are too many of
    them."""
    each = [np.arange(count, dtype=np.int64) * 2**20 // count for count in streams]
    among = np.unique(np.concatenate(each))
    if among.size > _MOST_PLACES:
        return None
    return [np.searchsorted(among, of).astype(np.uint16) for of in each]
