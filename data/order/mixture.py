"""Mixing of datasets by weight: a pure function from position to (dataset, position in it).

Blocks of K positions hold a fixed number of samples of each dataset: the largest remainder method
(Hamilton's) on the count of positions so far, so the error is carried over blocks and stays below
one sample. A keyed bijection shuffles each block. Every dataset's own positions come in order,
without a gap or repeat, also where the weights change.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from data.order.keyed_permutation import Ints, Words, check_seed, derive, permute, root_key
from data.order.sample_order import MAX_POSITION, EpochLookup, Order, checked_positions, fill

MIX = "mix-1"
"""Frozen: a change of any value of `Mixture.locate` needs a new name."""
PARTS = 10**9  # weights are whole parts of this, so that shares are exact; squares fit in int64
_MIX = 2  # purpose of keys
_BLOCK = 2**16  # positions that are located at a time; not fewer than a loader looks for


Weight: TypeAlias = float | Fraction


class MixtureSegment(NamedTuple):
    """The weights `parts`, which sum to 10**9, of the datasets from `position` on."""

    position: int
    parts: tuple[int, ...]


class _BlockTables(NamedTuple):
    """The slots of n blocks of K positions."""

    begins: Ints
    """The position at which each block begins, ascending, with shape (n,)."""
    datasets: Ints
    """The dataset of each slot, with shape (n, K)."""
    own: Ints
    """The position in the own stream of that dataset, with shape (n, K)."""


def segment(position: int, weights: Sequence[Weight]) -> MixtureSegment:
    """Return a segment of `weights` (>= 0, at least one > 0), scaled to sum to 1 and rounded to
    1e-9."""
    try:
        exact = [Fraction(weight) for weight in weights]
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
        check_seed(seed)
        self.segments = tuple(segments)
        self.seed = seed
        self.block = block
        _check_segments(self.segments, block)
        self.datasets = max(len(part.parts) for part in self.segments)
        self.segments = tuple(_widened(part, self.datasets) for part in self.segments)
        self._kept = _BlockTables(*(np.empty(0, dtype=np.int64),) * 3)
        """The newest tables: a rank looks for its positions among those of all ranks, and then for
        its own ones. Threads replace them as a whole."""
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
        datasets, _ = self._tables(np.array([number]), np.array([blocks]))
        within = np.bincount(datasets[0, :inside], minlength=self.datasets)
        return np.asarray(self._bases[number] + before + within, dtype=np.int64)

    def _locate(self, positions: Ints) -> tuple[Ints, Ints]:
        segments = np.searchsorted(self._begins, positions, side="right") - 1
        blocks, slots = np.divmod(positions - self._begins[segments], self.block)
        # blocks are told apart by where they begin: rows of pairs take ten times as long
        begins, first, rows = np.unique(positions - slots, return_index=True, return_inverse=True)
        kept = self._kept
        at = np.searchsorted(kept.begins, begins)
        if at[-1] == kept.begins.size or (kept.begins[at] != begins).any():
            tables = self._tables(segments[first], blocks[first])
            kept, at = _BlockTables(begins, *tables), np.arange(begins.size)
            self._kept = kept
        return kept.datasets[at[rows], slots], kept.own[at[rows], slots]

    def _tables(self, segments: Ints, blocks: Ints) -> tuple[Ints, Ints]:
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
        rank = np.empty(datasets.size, dtype=np.int64)
        rows = np.arange(segments.size)[:, None] * self.datasets
        by_dataset = np.argsort((rows + datasets).ravel(), kind="stable")
        sizes = counts.ravel()
        rank[by_dataset] = np.arange(rank.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        bases = self._bases[segments] + before
        return datasets, np.take_along_axis(bases, datasets, axis=1) + rank.reshape(datasets.shape)

    def _shuffled(self, counts: Ints, keys: Words) -> Ints:
        """Return the dataset of each slot, with shape (n, K), of blocks with `counts` of shape (n,
        D)."""
        slots = np.tile(np.arange(self.block), keys.size)
        slots = permute(slots, self.block, np.repeat(keys, self.block)).reshape(-1, self.block)
        rows = np.arange(keys.size)[:, None]
        ends = np.cumsum(counts, axis=1) + rows * self.block
        found = np.searchsorted(ends.ravel(), slots + rows * self.block, side="right")
        return np.asarray(found - rows * self.datasets, dtype=np.int64)


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
        return [
            replace(lookup, here=mine[lookup.here])
            for order, mine in self._by_order(datasets)
            for lookup in order.lookups(own[mine])
        ]

    def stream_of(self, positions: npt.ArrayLike) -> Ints:
        """Return in 0..2**20 - 1 where each position's stream is among the streams of its dataset,
        so that equal shares of each dataset go to equal shares of the ranks."""
        datasets, own = self.mixture.locate(positions)
        places, flat = np.empty(own.size, np.int64), own.ravel()
        for order, mine in self._by_order(datasets.ravel()):
            places[mine] = order.stream_of(flat[mine]) * 2**20 // order.streams
        return places.reshape(own.shape)

    def _by_order(self, datasets: Ints) -> Iterator[tuple[Order, Ints]]:
        """Yield each order that is in `datasets`, with shape (n,), and where it is there."""
        by_dataset = np.argsort(datasets, kind="stable")
        ends = np.searchsorted(datasets[by_dataset], np.arange(len(self.orders) + 1))
        for order, (first, end) in zip(self.orders, pairwise(ends), strict=True):
            if first < end:
                yield order, by_dataset[first:end]


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
