"""When each shard is used next, by which prefetch and eviction are planned.

A shard counts as used from where its window begins until where it ends. The samples of a window are
shuffled, so nearly every one of its shards is needed within its first few samples.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import count, takewhile
from typing import NamedTuple

import numpy as np

from data.order.keyed_permutation import Ints
from data.order.sample_order import Order, checked_positions
from data.order.virtual_streams import stream_cuts

NEVER = 2**63 - 1
_CHUNK = 256  # windows that become Python objects at a time


class ShardUse(NamedTuple):
    """A shard is live while positions `first` .. `last` are read."""

    first: int
    last: int
    shard: int


def uses_ahead(
    order: Order, position: int, streams: Collection[int] | None = None
) -> Iterator[ShardUse]:
    """Yield every use of a shard that is not over at `position`, by its first position, without
    end.

    A use that is under way has `position` as its first. A shard that is cut comes once per stream;
    `streams` are those that this node reads (all if None). Ends only if they have no samples.
    Raises ValueError for an impossible position or stream.
    """
    position = int(checked_positions(position))
    for part, shift, begin, end in order.parts_from(position):
        at = max(position, begin) - shift
        epoch = _epoch_at(part, at)
        sizes = np.diff(stream_cuts(part.samples, part.streams))
        if streams is not None and not sizes[_mask(part.streams, streams)].any():
            continue
        epochs = count(epoch) if end is None else range(epoch, end)
        for chunk in _chunks(part, at, streams, epochs):
            for first, last, shard in zip(*(column.tolist() for column in chunk), strict=True):
                yield ShardUse(first + shift, last + shift, shard)


def shards_ahead(
    order: Order, position: int, streams: Collection[int] | None = None
) -> Iterator[tuple[int, int]]:
    """Yield (first position of its next use, shard) of each shard once, by that position.

    Reaches to the end of the next epoch at most. Otherwise as `uses_ahead`.
    """
    epoch = order.epoch_of(int(checked_positions(position)))
    if next(order.parts_from(position)).order is not order:  # the dataset has grown
        end = order.epoch_begin(epoch + 2)
        found = dict[int, int]()
        for use in takewhile(lambda use: use.first < end, uses_ahead(order, position, streams)):
            found.setdefault(use.shard, use.first)
        yield from ((first, shard) for shard, first in found.items())
        return
    seen = np.zeros(order.counts.size, dtype=bool)
    for firsts, _, shards in _chunks(order, position, streams, (epoch, epoch + 1)):
        fresh = np.flatnonzero(~seen[shards])
        fresh = fresh[np.sort(np.unique(shards[fresh], return_index=True)[1])]
        seen[shards[fresh]] = True
        yield from zip(firsts[fresh].tolist(), shards[fresh].tolist(), strict=True)


def _epoch_at(order: Order, position: int) -> int:
    return int(checked_positions(position)) // order.samples


def _chunks(
    order: Order, position: int, streams: Collection[int] | None, epochs: Iterable[int]
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (first, last, shard) columns of a few hundred windows at a time."""
    step = _CHUNK * order.window
    for number in epochs:
        firsts, lasts, shards = _uses(order, number, position, streams)
        for at in range(0, shards.size, step):
            part = slice(at, at + step)
            yield firsts[part], lasts[part], shards[part]


def _uses(
    order: Order, number: int, position: int, streams: Collection[int] | None
) -> tuple[Ints, Ints, Ints]:
    """Return the uses in epoch `number` that are not over at `position`, by first position."""
    deal, epoch = order.plan(number)
    owner = epoch.window_streams.astype(np.int64)
    turns = order.turns(number).turns[owner]
    base = number * order.samples + turns - deal.cuts[owner] * order.streams
    firsts = epoch.window_starts[:-1] * order.streams + base
    lasts = (epoch.window_starts[1:] - 1) * order.streams + base
    wanted = lasts >= position
    if streams is not None:
        wanted &= _mask(order.streams, streams)[owner]
    windows = np.flatnonzero(wanted)
    windows = windows[np.argsort(np.maximum(firsts[windows], position), kind="stable")]
    sizes = np.diff(epoch.windows)[windows]
    rows = np.repeat(windows, sizes)
    places = epoch.windows[rows] + np.arange(rows.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    shards = deal.shards[epoch.order[places]].astype(np.int64)
    return np.maximum(firsts[rows], position), lasts[rows], shards


def _mask(count: int, streams: Collection[int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return whether each stream is among `streams`, with shape (V,)."""
    numbers = np.array(sorted(streams), dtype=np.int64)
    if numbers.size and not 0 <= int(numbers[0]) <= int(numbers[-1]) < count:
        raise ValueError(f"streams must be in 0..{count - 1}, got {numbers[0]}..{numbers[-1]}")
    mask = np.zeros(count, dtype=bool)
    mask[numbers] = True
    return mask
