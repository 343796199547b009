"""Mixing of datasets by weight: a pure function from position to (dataset, position in it).

Blocks of K positions hold a fixed number of samples of each dataset: the largest remainder method
(Hamilton's) on the count of positions so far, so the error is carried over blocks and stays below
one sample. A keyed bijection shuffles each block. Every dataset's own positions come in order,
without a gap or repeat, also where the weights change.
"""

import operator
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from data.order.keyed_permutation import Ints, Words, check_seed, derive, permute, root_key
from data.order.sample_order import (
    MAX_POSITION,
    EpochLookup,
    Order,
    checked_positions,
    fill,
    whole_number,
)

MIX = "mix-1"
"""Frozen: a change of any value of `Mixture.locate` needs a new name."""
PARTS = 10**9  # weights are whole parts of this, so that shares are exact; squares fit in int64
_MIX = 2  # purpose of keys
_BLOCK = 2**17  # positions that are located at a time; not fewer than a loader looks for
_MOST_SLOTS = 2**21  # slots of blocks that are kept, of 9 bytes or more
_SLOTS = 2**15  # slots of blocks that are shuffled at a time, so that they stay in a core's cache


Weight: TypeAlias = float | Fraction


class MixtureSegment(NamedTuple):
    """The weights `parts`, which sum to 10**9, of the datasets from `position` on."""

    position: int
    parts: tuple[int, ...]


_Numbers: TypeAlias = npt.NDArray[np.integer]  # of datasets, of the narrowest type: sorted sooner


class _LocatedRange(NamedTuple):
    """The dataset and the own position of each position from `begin` up to `end`, which is not
    beyond the end of the segment; the arrays may be longer."""

    begin: int
    end: int
    datasets: _Numbers
    own: Ints


def segment(position: int, weights: Sequence[Weight]) -> MixtureSegment:
    """Return a segment of `weights` (>= 0, at least one > 0), scaled to sum to 1 and rounded to
    1e-9."""
    position = whole_number("the position of a stage", position)
    try:
        exact = [_exact(weight) for weight in weights]
    except (ValueError, OverflowError, TypeError) as error:
        raise ValueError(f"weights must be finite numbers, got {list(weights)}") from error
    if not exact or min(exact) < 0 or not sum(exact):
        raise ValueError(f"weights must be >= 0 and one of them > 0, got {list(weights)}")
    quotas = [weight * PARTS / sum(exact) for weight in exact]
    parts = [int(quota) for quota in quotas]
    for dataset, quota in enumerate(quotas):
        if 0 < quota < 1:  # it might be rounded to 0, and the dataset would never come
            raise ValueError(
                f"a weight of {weights[dataset]} among {list(weights)} is less than a share of "
                f"{1 / PARTS:g}; use at least that, or 0 to leave the dataset out"
            )
    by_rest = sorted(range(len(parts)), key=lambda d: (parts[d] - quotas[d], d))
    for dataset in by_rest[: PARTS - sum(parts)]:
        parts[dataset] += 1
    return MixtureSegment(position, tuple(parts))


def _exact(weight: Any) -> Fraction:
    """Return a weight, which may be a number of numpy, whose products would overflow."""
    if isinstance(weight, float | Fraction):
        return Fraction(weight)
    try:
        return Fraction(operator.index(weight))
    except TypeError:
        return Fraction(float(weight))


class Mixture:
    """The mixing of datasets over one or more segments of the stream, the first from position 0.

    A later segment may name more datasets than an earlier one; a weight of 0 pauses a dataset.
    State and memory are O(segments), a position costs O(block). Raises ValueError for segments out
    of order, or a weight below 1 / block.
    """

    samples = MAX_POSITION
    """A mixture has no epochs of its own: for placement, one that never ends."""

    def __init__(
        self, segments: Sequence[MixtureSegment], *, seed: int = 0, block: int = 1024
    ) -> None:
        seed, block = whole_number("seed", seed), whole_number("block", block)
        check_seed(seed)
        self.segments = tuple(segments)
        self.seed = seed
        self.block = block
        _check_segments(self.segments, block)
        self.datasets = max(len(part.parts) for part in self.segments)
        self.segments = tuple(_widened(part, self.datasets) for part in self.segments)
        self._kept = _LocatedRange(0, 0, *(np.empty(0, dtype=np.int64),) * 2)
        """The newest range: a rank looks for its positions among those of all ranks, and then for
        its own ones. Threads replace it as a whole."""
        self._begins = np.array([part.position for part in self.segments], dtype=np.int64)
        self._parts = np.zeros((len(self.segments), self.datasets), dtype=np.int64)
        self._bases = np.zeros_like(self._parts)
        for number, part in enumerate(self.segments):
            self._parts[number] = part.parts
            if number:
                self._bases[number] = self._consumed(number - 1, part.position)

    def then(self, position: int, weights: Sequence[Weight]) -> "Mixture":
        """Return the same mixture up to `position`, and mixed by `weights` from there on."""
        kept = [part for part in self.segments if part.position < position]
        return Mixture([*kept, segment(position, weights)], seed=self.seed, block=self.block)

    def in_force(self, position: int) -> MixtureSegment:
        """Return the segment that `position` is in."""
        return self.segments[int(np.searchsorted(self._begins, position, side="right")) - 1]

    def position_of(self, dataset: int, own: int) -> int | None:
        """Return about where position `own` of a dataset's own stream is in the mixture, by the
        weights alone; None: the dataset ends before it, as its weight is 0 from then on."""
        for number, part in enumerate(self.segments):
            is_last = number + 1 == len(self.segments)
            share = int(self._parts[number, dataset])
            if share and (is_last or own < int(self._bases[number + 1, dataset])):
                ahead = max(0, own - int(self._bases[number, dataset]))
                return part.position + ahead * PARTS // share
        return None

    def locate(self, positions: npt.ArrayLike) -> tuple[Ints, Ints]:
        """Return (dataset, position in that dataset's own stream) of each position, in their
        shape."""
        asked = checked_positions(positions)
        flat = asked.ravel()
        datasets, own = np.empty_like(flat), np.empty_like(flat)
        for at in range(0, flat.size, _BLOCK):
            part = slice(at, at + _BLOCK)
            datasets[part], own[part] = self._locate(flat[part])
        return datasets.reshape(asked.shape), own.reshape(asked.shape)

    def consumed(self, position: int) -> Ints:
        """Return the position of each dataset's own stream at `position` of the mixture, with shape
        (D,)."""
        at = int(checked_positions(position))
        return self._consumed(int(np.searchsorted(self._begins, at, side="right")) - 1, at)

    def _consumed(self, number: int, position: int) -> Ints:
        blocks, inside = divmod(position - int(self._begins[number]), self.block)
        before = _apportion(np.array([blocks * self.block]), self._parts[number])[0]
        begin, kept = position - inside, self._kept
        if kept.begin <= begin <= position <= kept.end:
            datasets = kept.datasets[begin - kept.begin : position - kept.begin]
        else:
            datasets = self._tables(np.array([number]), np.array([blocks]))[0][0, :inside]
        within = np.bincount(datasets, minlength=self.datasets)
        return np.asarray(self._bases[number] + before + within, dtype=np.int64)

    def _locate(self, positions: Ints) -> tuple[_Numbers, Ints]:
        low, high = int(positions.min()), int(positions.max())
        kept = self._kept
        if not kept.begin <= low <= high < kept.end:
            found = self._range(low, high, positions.size)
            if found is None:
                return self._locate_apart(positions)
            kept = self._kept = found
        at = positions - kept.begin
        return kept.datasets[at], kept.own[at]

    def _range(self, low: int, high: int, count: int) -> _LocatedRange | None:
        """Return the blocks from position `low` to `high`; None if they are of several segments,
        more than `count`, or too many to keep."""
        number = int(np.searchsorted(self._begins, low, side="right")) - 1
        begin, end = int(self._begins[number]), MAX_POSITION + 1
        if number + 1 < len(self._begins):
            end = int(self._begins[number + 1])
        first, last = (low - begin) // self.block, (high - begin) // self.block
        if high >= end or last - first >= min(count, max(1, _MOST_SLOTS // self.block)):
            return None
        most = max(1, _SLOTS // self.block)
        parts = []
        for at in range(first, last + 1, most):
            blocks = np.arange(at, min(at + most, last + 1))
            parts.append(self._tables(np.full_like(blocks, number), blocks))
        datasets, own = (np.concatenate(column).ravel() for column in zip(*parts, strict=True))
        first, end = begin + first * self.block, min(end, begin + (last + 1) * self.block)
        return _LocatedRange(first, end, datasets, own)

    def _locate_apart(self, positions: Ints) -> tuple[_Numbers, Ints]:
        """Locate positions that are in different segments, or far from each other."""
        segments = np.searchsorted(self._begins, positions, side="right") - 1
        blocks, slots = np.divmod(positions - self._begins[segments], self.block)
        # blocks are told apart by where they begin: rows of pairs take ten times as long
        _, first, rows = np.unique(positions - slots, return_index=True, return_inverse=True)
        datasets, own = self._tables(segments[first], blocks[first])
        return datasets[rows, slots], own[rows, slots]

    def _tables(self, segments: Ints, blocks: Ints) -> tuple[_Numbers, Ints]:
        """Return dataset and own position of each slot of these n blocks, both with shape (n,
        K)."""
        before = np.empty((segments.size, self.datasets), dtype=np.int64)
        after = np.empty_like(before)
        for number in np.unique(segments).tolist():
            mine = segments == number
            before[mine] = _apportion(blocks[mine] * self.block, self._parts[number])
            after[mine] = _apportion((blocks[mine] + 1) * self.block, self._parts[number])
        counts = after - before
        keys = derive(root_key(self.seed, _MIX), self._begins[segments] + blocks * self.block)
        datasets = self._shuffled(counts, keys)
        # the slots of a block, sorted by dataset, are those of successive own positions of each
        by_dataset = np.argsort(datasets, axis=1, kind="stable")
        begins = np.cumsum(counts, axis=1) - counts
        first = self._bases[segments] + before - begins
        slots = np.arange(self.block)
        sorted_own = np.repeat(first.ravel(), counts.ravel()).reshape(datasets.shape) + slots
        own = np.empty(datasets.shape, dtype=np.int64)
        rows = np.arange(segments.size)[:, None] * self.block
        own.ravel()[(by_dataset + rows).ravel()] = sorted_own.ravel()
        return datasets, own

    def _shuffled(self, counts: Ints, keys: Words) -> _Numbers:
        """Return the dataset of each slot, with shape (n, K), of blocks with `counts` of shape (n,
        D)."""
        numbers = np.arange(self.datasets).astype(np.min_scalar_type(self.datasets))
        laid_out = np.repeat(np.tile(numbers, keys.size), counts.ravel())
        slots = np.broadcast_to(np.arange(self.block), (keys.size, self.block))
        places = permute(slots, self.block, keys[:, None])
        places += np.arange(keys.size)[:, None] * self.block
        return laid_out[places]


def continued(
    saved: Sequence[MixtureSegment], planned: Sequence[MixtureSegment], position: int
) -> list[MixtureSegment]:
    """Return the segments of a stream that was at `position` of the segments `saved` and goes on by
    those that are `planned` now.

    What came before is that of `saved`. If the weights that are planned for `position` are not
    those that are in force, they are from `position` on; later segments are the planned ones. Both
    begin at position 0, and have as many datasets.
    """
    before = [part for part in saved if part.position <= position]
    now = [part for part in planned if part.position <= position][-1].parts
    if before[-1].parts != now:
        before = [part for part in before if part.position < position]
        before.append(MixtureSegment(position, now))
    return [*before, *(part for part in planned if part.position > position)]


def _widened(part: MixtureSegment, width: int) -> MixtureSegment:
    return MixtureSegment(part.position, (*part.parts, *[0] * (width - len(part.parts))))


class MixedOrder:
    """The orders of several datasets under one mixture: position to (dataset, shard, sample)."""

    samples = MAX_POSITION

    def __init__(self, orders: Sequence[Order], mixture: Mixture) -> None:
        if len(orders) != mixture.datasets:
            raise ValueError(f"{mixture.datasets} datasets are mixed, {len(orders)} orders given")
        self.orders = tuple(orders)
        self.mixture = mixture

    def locate(self, positions: npt.ArrayLike) -> tuple[Ints, Ints, Ints]:
        """Return (dataset, shard, sample in the shard) of each position, in their shape."""
        datasets, own = self.mixture.locate(positions)
        shards, samples = np.empty(own.size, np.int64), np.empty(own.size, np.int64)
        for at in range(0, own.size, _BLOCK):
            part = slice(at, at + _BLOCK)
            found = self._lookups(datasets.flat[part], own.flat[part])
            fill(shards[part], samples[part], found)
        return datasets, shards.reshape(own.shape), samples.reshape(own.shape)

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

    def _by_order(self, datasets: Ints) -> tuple[Ints, list[tuple[Order, slice]]]:
        """Return the numbers that sort `datasets`, with shape (n,), and of each order that is in
        it, where it is then."""
        narrow = datasets.astype(np.min_scalar_type(len(self.orders)))
        by_dataset = np.argsort(narrow, kind="stable")
        ends = np.cumsum([0, *np.bincount(datasets, minlength=len(self.orders)).tolist()])
        each = zip(self.orders, pairwise(ends), strict=True)
        return by_dataset, [(order, slice(*of)) for order, of in each if of[0] < of[1]]


def _apportion(totals: Ints, parts: Ints) -> Ints:
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


def _check_segments(segments: Sequence[MixtureSegment], block: int) -> None:
    begins = [part.position for part in segments]
    if not begins or begins[0] != 0 or sorted(set(begins)) != begins:
        raise ValueError(f"segments must begin at 0 and at rising positions, got {begins}")
    if not 1 <= block <= 2**20:
        raise ValueError(f"block must be in 1..2**20, got {block}")
    for part in segments:
        if min(part.parts) < 0 or sum(part.parts) != PARTS:
            raise ValueError(f"the parts of a segment must sum to 10**9, got {part.parts}")
        least = min(share for share in part.parts if share)
        if least * block < PARTS:
            raise ValueError(
                f"a weight of {least / PARTS} is less than one sample in a block of {block}; use a "
                f"block of at least {-(-PARTS // least)}"
            )
