"""Mixing of datasets by weight: a pure function from position to (dataset, position in it).

Blocks of K positions hold a fixed number of samples of each dataset: the largest remainder method
(Hamilton's) on the count of positions so far, so the error is carried over blocks and stays below
one sample. A keyed bijection shuffles each block. Every dataset's own positions come in order,
without a gap or repeat, also where the weights change.
"""

import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from data.order.keyed_permutation import Ints, check_seed
from data.order.mixed.sorted_slots import BlockRange, Slots
from data.order.mixture_blocks import MIX, MIX_ORDERS, PARTS, BlockShuffle, Numbers, apportion
from data.order.sample_order import (
    MAX_POSITION,
    checked_positions,
    whole_number,
)

_BLOCK = 2**18  # positions that are located at a time; not fewer than a loader looks for
_MOST_SLOTS = 2**21  # slots of blocks that are kept, of 5 bytes or more, and 2 for their places
_SLOTS = 2**15  # slots of blocks that are sorted at a time, so that they stay in a core's cache

Weight: TypeAlias = float | Fraction


class MixtureSegment(NamedTuple):
    """The weights `parts`, which sum to 10**9, of the datasets from `position` on."""

    position: int
    parts: tuple[int, ...]


class LocatedRange(NamedTuple):
    """The positions from `begin` up to `end`, which is not beyond the end of the segment, in runs
    of `run` slots; the arrays may be longer."""

    begin: int
    end: int
    run: int
    datasets: Numbers
    """The dataset of each slot."""
    ranks: npt.NDArray[np.int32]
    """The place of each slot among those of its run, sorted by dataset, then by position."""
    first: Ints
    """The own position with which each dataset begins in each run, with shape (runs, D)."""
    counts: Ints
    """The slots of each dataset in each run, with shape (runs, D)."""
    shifts: Ints
    """What own positions are more than ranks, with shape (runs, D)."""

    def located(self, positions: Ints) -> tuple[Ints, Ints]:
        """Return dataset and own position of positions within."""
        at = positions - self.begin
        datasets, ranks = self.datasets[at].astype(np.int64), self.ranks[at]
        if len(self.shifts) == 1:
            return datasets, self.shifts[0][datasets] + ranks
        return datasets, self.shifts[at // self.run, datasets] + ranks


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
            shown = [float(one) if isinstance(one, Fraction) else one for one in weights]
            raise ValueError(
                f"a weight of {shown[dataset]} among {shown} is less than a share of "
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
    State and memory are O(segments), a position costs O(block). `order` is one of `MIX_ORDERS`:
    that of a state, or the newest. Raises ValueError for segments out of order, or a weight below
    1 / block.
    """

    samples = MAX_POSITION
    """A mixture has no epochs of its own: for placement, one that never ends."""

    def __init__(
        self,
        segments: Sequence[MixtureSegment],
        *,
        seed: int = 0,
        block: int = 1024,
        order: str = MIX,
    ) -> None:
        seed, block = whole_number("seed", seed), whole_number("block", block)
        check_seed(seed)
        if order not in MIX_ORDERS:
            raise ValueError(f"the order of a mixture must be one of {MIX_ORDERS}, got {order!r}")
        self.segments = tuple(segments)
        self.seed = seed
        self.block = block
        self.order = order
        _check_segments(self.segments, block)
        self.datasets = max(len(part.parts) for part in self.segments)
        self.segments = tuple(_widened(part, self.datasets) for part in self.segments)
        self._shuffle = BlockShuffle(order, seed=seed, block=block, datasets=self.datasets)
        self._kept: LocatedRange | None = None
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
        return self.of_segments([*kept, segment(position, weights)])

    def of_segments(self, segments: Sequence[MixtureSegment]) -> "Mixture":
        """Return the mixture over other segments by the same options. Raises ValueError as the
        class."""
        return Mixture(segments, seed=self.seed, block=self.block, order=self.order)

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

    def range_of(self, positions: Ints) -> LocatedRange | None:
        """Return a range that has all of these positions, with shape (n,); None if they are in
        different segments, or far from each other. The newest range is kept."""
        low, high = int(positions.min()), int(positions.max())
        kept = self._kept
        if kept is not None and kept.begin <= low <= high < kept.end:
            return kept
        found = self._range(low, high, positions.size)
        if found is not None:
            self._kept = found
        return found

    def block_range(self, low: int, high: int) -> BlockRange | None:
        """Return the blocks from position `low` to `high`; None: they are of several segments, of
        mix-1, or too many."""
        number = int(np.searchsorted(self._begins, low, side="right")) - 1
        begin = int(self._begins[number])
        first, last = (low - begin) // self.block, (high - begin) // self.block
        is_one = number + 1 == len(self._begins) or high < int(self._begins[number + 1])
        if not is_one or self.order != MIX or (last - first + 1) * self.block > _MOST_SLOTS:
            return None
        totals = np.arange(first, last + 2) * self.block
        before = self._bases[number] + apportion(totals, self._parts[number])

        def slots_of(blocks: Ints) -> Slots:
            return self._shuffle.slots_by_dataset(np.full_like(blocks, begin), first + blocks)

        return BlockRange(begin + first * self.block, self.block, before, slots_of)

    def _consumed(self, number: int, position: int) -> Ints:
        blocks, inside = divmod(position - int(self._begins[number]), self.block)
        before = apportion(np.array([blocks * self.block]), self._parts[number])[0]
        begin, kept = position - inside, self._kept
        if kept is not None and kept.begin <= begin <= position <= kept.end:
            datasets = kept.datasets[begin - kept.begin : position - kept.begin]
        elif inside:
            datasets = self._tables(np.array([number]), np.array([blocks]))[0][0, :inside]
        else:
            datasets = np.empty(0, dtype=np.int64)
        within = np.bincount(datasets, minlength=self.datasets)
        return np.asarray(self._bases[number] + before + within, dtype=np.int64)

    def _locate(self, positions: Ints) -> tuple[Ints, Ints]:
        found = self.range_of(positions)
        return self._locate_apart(positions) if found is None else found.located(positions)

    def _range(self, low: int, high: int, count: int) -> LocatedRange | None:
        """Return the blocks from position `low` to `high`; None if they are of several segments,
        more than `count`, or too many to keep."""
        number = int(np.searchsorted(self._begins, low, side="right")) - 1
        begin, end = int(self._begins[number]), MAX_POSITION + 1
        if number + 1 < len(self._begins):
            end = int(self._begins[number + 1])
        first, last = (low - begin) // self.block, (high - begin) // self.block
        if high >= end or last - first >= min(count, max(1, _MOST_SLOTS // self.block)):
            return None
        blocks = np.arange(first, last + 1)
        each = max(1, _SLOTS // self.block)
        totals = apportion(np.append(blocks, last + 1) * self.block, self._parts[number])
        of_blocks = np.diff(totals, axis=0)
        begins = np.full_like(blocks, begin)
        datasets, ranks = [], []
        for run in self._shuffle.in_runs(begins, blocks, of_blocks, each):
            datasets.append(run)
            ranks.append(_ranks(run.ravel()))
        before = totals[:-1][::each]
        counts = np.diff(np.concatenate([before, totals[-1:]]), axis=0)
        own = self._bases[number] + before
        return LocatedRange(
            begin=begin + first * self.block,
            end=min(end, begin + (last + 1) * self.block),
            run=each * self.block,
            datasets=np.concatenate(datasets).ravel(),
            ranks=np.concatenate(ranks),
            first=own,
            counts=counts,
            shifts=own - (np.cumsum(counts, axis=1) - counts),
        )

    def _locate_apart(self, positions: Ints) -> tuple[Ints, Ints]:
        """Locate positions that are in different segments, or far from each other."""
        segments = np.searchsorted(self._begins, positions, side="right") - 1
        blocks, slots = np.divmod(positions - self._begins[segments], self.block)
        # blocks are told apart by where they begin: rows of pairs take ten times as long
        _, first, rows = np.unique(positions - slots, return_index=True, return_inverse=True)
        datasets, own = self._tables(segments[first], blocks[first])
        return datasets[rows, slots].astype(np.int64), own[rows, slots]

    def _tables(self, segments: Ints, blocks: Ints) -> tuple[Numbers, Ints]:
        """Return dataset and own position of each slot of these n blocks, both with shape (n,
        K)."""
        before = np.empty((segments.size, self.datasets), dtype=np.int64)
        after = np.empty_like(before)
        for number in np.unique(segments).tolist():
            mine = segments == number
            before[mine] = apportion(blocks[mine] * self.block, self._parts[number])
            after[mine] = apportion((blocks[mine] + 1) * self.block, self._parts[number])
        counts = after - before
        datasets = self._shuffle.datasets(self._begins[segments], blocks, counts)
        # the slots of a block, sorted by dataset, are those of successive own positions of each
        by_dataset = np.argsort(datasets, axis=1, kind="stable")
        begins = np.cumsum(counts, axis=1) - counts
        first = self._bases[segments] + before - begins
        sorted_own = np.repeat(first.ravel(), counts.ravel()).reshape(datasets.shape)
        own = np.empty(datasets.shape, dtype=np.int64)
        np.put_along_axis(own, by_dataset, sorted_own + np.arange(self.block), axis=1)
        return datasets, own


def _ranks(datasets: Numbers) -> npt.NDArray[np.int32]:
    """Return the place of each number among all, sorted stably; shape (n,)."""
    ranks = np.empty(datasets.size, dtype=np.int32)
    ranks[np.argsort(datasets, kind="stable")] = np.arange(datasets.size, dtype=np.int32)
    return ranks


def continued(
    saved: Sequence[MixtureSegment], planned: Sequence[MixtureSegment], position: int
) -> list[MixtureSegment]:
    """Return the segments of a stream that was at `position` of the segments `saved` and goes on by
    those that are `planned` now.

    What came before is that of `saved`. If the weights that are planned for `position` are not
    those that are in force, they are from `position` on; later segments are the planned ones. Both
    begin at position 0, and have as many datasets. Weights that differ by their rounding alone, as
    those of datasets that are given in another order, are those that were saved.
    """
    before = [part for part in saved if part.position <= position]
    now = [part for part in planned if part.position <= position][-1].parts
    if not _is_rounding(before[-1].parts, now):
        before = [part for part in before if part.position < position]
        before.append(MixtureSegment(position, now))
    were = {part.position: part for part in saved}
    for part in planned:
        if part.position > position:
            was = were.get(part.position, part)
            before.append(was if _is_rounding(was.parts, part.parts) else part)
    return before


def same_until(
    position: int, segments: Sequence[MixtureSegment], others: Sequence[MixtureSegment]
) -> bool:
    """Return whether two mixtures have the same segments up to a position, as `continued` compares
    their weights."""
    each = [[part for part in of if part.position <= position] for of in (segments, others)]
    return len(each[0]) == len(each[1]) and all(
        one.position == other.position and _is_rounding(one.parts, other.parts)
        for one, other in zip(*each, strict=True)
    )


def _is_rounding(parts: Sequence[int], others: Sequence[int]) -> bool:
    """Return whether weights are the same up to the last unit, to which they were rounded."""
    each = zip(parts, others, strict=True)
    return all(abs(one - other) <= 1 and bool(one) == bool(other) for one, other in each)


def _widened(part: MixtureSegment, width: int) -> MixtureSegment:
    return MixtureSegment(part.position, (*part.parts, *[0] * (width - len(part.parts))))


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
