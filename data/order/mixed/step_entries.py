"""The entries of the steps of a mixture that a rank takes, without a look at those of others.

The positions of a step are sorted by stream of their datasets, and then by themselves. Each stream
has every V-th own position of its dataset, so the number of them that a step has of each stream
determines of which streams a rank takes entries. Of these, the blocks in which they are follow from
the weights, so that only the slots of blocks of which it takes any are looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from data.order.keyed_permutation import Ints
from data.order.mixed.sorted_slots import BlockRange
from data.order.sample_order import MAX_POSITION, Order
from data.order.virtual_streams import distinct

MOST_STREAMS = 2**11
"""Of each dataset, so that a number of 63 bits tells step, stream, position and candidate."""
_FEW_BLOCKS = 8  # of a step, of which one is cut: all are sorted
_LEAST_GROUP = 2**10
"""Positions of the blocks of a group of candidates: with small blocks, there would be more groups
than candidates."""
_MOST_PARTS = 2  # of epochs of a dataset in a step, in the mean
_MOST_EPOCHS = MAX_POSITION // 2**20

Bools: TypeAlias = npt.NDArray[np.bool_]


class StepEntries(NamedTuple):
    """Some entries of S steps, with shape (S, E)."""

    positions: Ints
    datasets: Ints
    own: Ints
    """Their positions in their dataset's own stream."""


class _Parts(NamedTuple):
    """What each step has of an epoch of a dataset: n parts, by step."""

    steps: Ints
    datasets: Ints
    begins: Ints
    """The own position at which each begins."""
    first: npt.NDArray[np.int16]
    """Shape (n, V): the first own position of each stream, counted from where the part begins."""
    each: Ints
    """How many own positions each stream has at least; shape (n,)."""
    has_more: Bools
    """Shape (n, V): whether a stream has one more."""


def entries_of_steps(
    blocks: BlockRange,
    orders: Sequence[Order],
    position: int,
    size: int,
    steps: int,
    entries: range,
) -> StepEntries | None:
    """Return some entries of each of `steps` steps of `size` positions from `position` on.

    Args:
        blocks: those that have these positions.
        orders: of the datasets, shuffled and with equal numbers of streams.

    None if the epochs are too short, or the own positions too large.
    """
    cuts = position + size * np.arange(steps + 1)
    is_cut = bool(((cuts - blocks.begin) % blocks.block).any())
    known = blocks.sorted_all() if is_cut and size < _FEW_BLOCKS * blocks.block else None
    parts = _parts(blocks.own_before(cuts, known), orders)
    if parts is None:
        return None
    taken = _Taken.of(parts, steps, entries)
    pair, datasets, own = _candidates(parts, taken.is_taken)
    of = blocks.blocks_of(datasets, own)
    begins = taken.begins
    if known is None:
        together = max(1, _LEAST_GROUP // blocks.block)
        firsts = (cuts[:-1] - blocks.begin) // (blocks.block * together)
        groups = _Groups.of(pair, of // together - firsts[taken.steps][pair], taken.steps)
        kept, begins = groups.chosen(begins, len(entries))
        pair, datasets, own, of = pair[kept], datasets[kept], own[kept], of[kept]
        known = blocks.sorted(distinct(of)[0])
    slots = known.slots(of, datasets, own - blocks.before[of, datasets])
    places = of * blocks.block + slots
    # of one sorted number each, which takes less time than to sort the numbers of candidates
    keys = pair << ((len(blocks.before) - 1) * blocks.block).bit_length()
    keys += places
    keys <<= (bits := own.size.bit_length())
    keys += np.arange(own.size)
    keys.sort()
    keys &= (1 << bits) - 1
    chosen = keys[begins[:, None] + np.arange(len(entries))]
    positions = blocks.begin + places
    return StepEntries(positions[chosen], datasets[chosen], own[chosen])


class _Taken(NamedTuple):
    """The streams of which a rank takes entries in each of S steps. The entries of these streams
    are the candidates, sorted by step, stream and position."""

    is_taken: Bools
    """Shape (S, V)."""
    steps: Ints
    """The step of each pair of a step and one of its streams."""
    begins: Ints
    """Shape (S,): the number of the first candidate that is taken in each step."""

    @classmethod
    def of(cls, parts: _Parts, steps: int, entries: range) -> _Taken:
        begins = np.searchsorted(parts.steps, np.arange(steps))
        counts = np.add.reduceat(parts.has_more, begins, axis=0, dtype=np.int64)
        counts += np.add.reduceat(parts.each, begins)[:, None]
        ends = np.cumsum(counts, axis=1)
        before = ends - counts
        is_taken = (counts > 0) & (ends > entries.start) & (before < entries.stop)
        skipped = entries.start - before[np.arange(steps), is_taken.argmax(axis=1)]
        numbers = np.where(is_taken, counts, 0).sum(axis=1)
        steps_of = np.flatnonzero(is_taken) // is_taken.shape[1]
        return cls(is_taken, steps_of, np.cumsum(numbers) - numbers + skipped)


class _Groups(NamedTuple):
    """The candidates by step, stream and range of blocks: G groups, in this order."""

    group: Ints
    """Shape (n,): the group of each candidate."""
    steps: Ints
    """Shape (G,): the step of each group."""
    ends: Ints
    """Shape (G,): how many candidates there are up to the end of each group."""

    @classmethod
    def of(cls, pair: Ints, place: Ints, steps: Ints) -> _Groups:
        """Group n candidates.

        Args:
            pair: the number of the step and stream of each, of P pairs.
            place: the number of the range of blocks of each in the step.
            steps: the step of each pair, with shape (P,).
        """
        width = int(place.max()) + 1
        group = pair * width + place
        sizes = np.bincount(group, minlength=steps.size * width)
        return cls(group, np.repeat(steps, width), np.cumsum(sizes))

    def chosen(self, begins: Ints, count: int) -> tuple[Ints, Ints]:
        """Return the candidates whose group has one that is taken, and the number of the first one
        that is taken in each step, among these only.

        Args:
            begins: this number among all candidates, with shape (S,).
            count: how many are taken in each step.
        """
        before = np.concatenate([[0], self.ends[:-1]])
        begin = begins[self.steps]
        is_chosen = (self.ends > begin) & (before < begin + count) & (self.ends > before)
        left_out = np.cumsum(np.where(is_chosen, 0, self.ends - before))
        groups = np.flatnonzero(is_chosen)
        first = groups[np.searchsorted(self.steps[groups], np.arange(begins.size))]
        return np.flatnonzero(is_chosen[self.group]), begins - left_out[first]


def _parts(own: Ints, orders: Sequence[Order]) -> _Parts | None:
    """Return the parts of steps, given the own position of each dataset before each of them and
    after the last one, with shape (S + 1, D)."""
    width, streams = own.shape[1], orders[0].streams
    begins, counts = own[:-1].ravel(), np.diff(own, axis=0).ravel()
    samples = np.tile([order.samples for order in orders], len(own) - 1)
    firsts = begins // samples
    numbers = np.where(counts > 0, (begins + counts - 1) // samples - firsts + 1, 0)
    if int(numbers.sum()) > _MOST_PARTS * numbers.size or int(firsts.max()) > _MOST_EPOCHS // width:
        return None
    of = np.repeat(np.arange(numbers.size), numbers)
    epochs = np.arange(of.size) - (np.cumsum(numbers) - numbers - firsts)[of]
    samples = samples[of]
    here = np.maximum(begins[of], epochs * samples)
    lengths = np.minimum((begins + counts)[of], (epochs + 1) * samples) - here
    datasets = of % width
    different, which = distinct((epochs - int(epochs.min())) * width + datasets)
    pairs = zip(*(column.tolist() for column in np.divmod(different, width)), strict=True)
    lowest = int(epochs.min())
    turns = np.stack([orders[d].turns(lowest + e).turns for e, d in pairs]).astype(np.int16)
    first = turns[which]
    first -= ((here - epochs * samples) % streams).astype(np.int16)[:, None]
    first += (first < 0) * np.int16(streams)
    each, more = np.divmod(lengths, streams)
    has_more = first < more.astype(np.int16)[:, None]
    return _Parts(of // width, datasets, here, first, each, has_more)


def _candidates(parts: _Parts, is_taken: Bools) -> tuple[Ints, Ints, Ints]:
    """Return (number of the step and stream, dataset, own position) of all entries of some streams
    in each step.

    Args:
        is_taken: whether a stream is one of these, with shape (S, V): their numbers count these.
    """
    streams = is_taken.shape[1]
    has_any = parts.has_more | (parts.each > 0)[:, None]
    has_any &= is_taken[parts.steps]
    part, stream = np.divmod(np.flatnonzero(has_any), streams)
    numbers = parts.each[part] + parts.has_more[part, stream]
    firsts = parts.begins[part] + parts.first[part, stream]
    own = np.repeat(firsts - (np.cumsum(numbers) - numbers) * streams, numbers)
    own += np.arange(0, own.size * streams, streams)
    pairs = (np.cumsum(is_taken) - 1)[parts.steps[part] * streams + stream]
    return np.repeat(pairs, numbers), np.repeat(parts.datasets[part], numbers), own
