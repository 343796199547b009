"""The assignment of shards to virtual streams, and the order of a stream's pieces in one epoch.

The shards are put in a permuted line, which is cut into V nearly equal ranges of samples, the
streams. A cut may fall inside a shard: a *piece* is the part of a shard that is in one stream. The
assignment holds for the whole run, so that a node which reads the same streams reads the same
shards in every epoch. In an epoch the pieces of a stream are permuted, and grouped into windows of
at most G successive ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from data.order.keyed_permutation import Ints, Words, derive, permute

_Small: TypeAlias = npt.NDArray[np.int32]  # numbers of shards and pieces: half the memory
_STEPS_OF_A_RANGE = 4  # mean number of entries for a range in the table of `find_ranges`
_FEW_NUMBERS = 2  # for each range, below which a table takes longer than it saves
_MOST_COMPARISONS = 4
_BLOCK = 2**15  # values that are permuted at a time, so that they stay in a core's cache


@dataclass(frozen=True)
class StreamAssignment:
    """The pieces of each of the V streams. Coordinates are samples along the line."""

    cuts: Ints
    """Shape (V + 1,): stream v holds [cuts[v], cuts[v + 1]) of the line."""
    first: Ints
    """Shape (V + 1,): its pieces are first[v] .. first[v + 1] - 1."""
    head: Ints
    """Shape (V,): where in its shard the first piece of the stream begins; others begin at 0."""
    shards: _Small
    """Shape (P,): the shard of each piece."""
    sizes: Ints
    """Shape (P,): the samples of each piece, at least 1."""


@dataclass(frozen=True)
class StreamTurns:
    """Which stream serves position q of an epoch: number q % V of `streams`, shape (V,).

    `turns` is the inverse: the turn of each stream.
    """

    streams: Ints
    turns: Ints


@dataclass(frozen=True)
class StepParts:
    """What S steps have of an epoch: `size` positions each, which follow one another."""

    turns: StreamTurns
    begins: Ints
    """Shape (S,): the position in the epoch at which each part begins."""
    size: int
    shift: int
    """What is added to positions in the epoch."""


@dataclass(frozen=True)
class EpochPieces:
    """The pieces of all streams, in the order of one epoch. Coordinates are as in
    `StreamAssignment`."""

    order: _Small
    """Shape (P,): the piece at each place in the line."""
    starts: Ints
    """Shape (P + 1,): where each place begins in the line."""
    windows: Ints
    """Shape (W + 1,): the first place of each window."""
    window_starts: Ints
    """Shape (W + 1,): where each window begins in the line."""
    window_streams: _Small
    """Shape (W,): the stream of each window."""
    window_keys: Words | None
    """Shape (W,): the key of each window's permutation; None if samples stay in natural order."""


def stream_cuts(samples: int, streams: int) -> Ints:
    """Shape (V + 1,): streams of samples // V samples, the first samples % V of them one longer."""
    numbers = np.arange(streams + 1, dtype=np.int64)
    return numbers * (samples // streams) + np.minimum(numbers, samples % streams)


def turns_of(samples: int, streams: int, keys: Words | None) -> list[StreamTurns]:
    """Return the turns of the epochs that `keys` select, with shape (E,); of one epoch without
    them. The longer streams are permuted among themselves, and the others too.

    So q // V stays the offset in the stream. Without turns, an epoch of at most V samples would be
    the same every time.
    """
    numbers = np.arange(streams, dtype=np.int64)
    if keys is None:
        return [StreamTurns(numbers, numbers)]
    longer = samples % streams
    begins = np.where(numbers < longer, 0, longer)
    sizes = np.where(numbers < longer, longer, streams - longer)
    within = np.broadcast_to(numbers - begins, (keys.size, streams))
    served = begins + permute(within, sizes, keys[:, None])
    turns = np.empty_like(served)
    np.put_along_axis(turns, served, np.broadcast_to(numbers, served.shape), axis=1)
    return [StreamTurns(*row) for row in zip(served, turns, strict=True)]


def entries_of_steps(parts: Sequence[StepParts], entries: range) -> Ints:
    """Return the positions of some entries of S steps, with shape (S, E): the positions of a step
    are sorted by stream, and then by themselves.

    Each stream has every V-th position of a part from its first one on, so how many each has tells
    which positions the entries are. The others are not looked at.

    Args:
        parts: what the steps have of each epoch that they lie in, by epoch.
    """
    first, counts = (
        np.stack(each, axis=2).reshape(parts[0].begins.size, -1)
        for each in zip(*map(_streams_of_parts, parts), strict=True)
    )
    streams = parts[0].turns.turns.size
    ends = np.cumsum(counts, axis=1)
    before = ends - counts
    skipped = np.maximum(entries.start - before, 0)
    kept = np.maximum(np.minimum(ends, entries.stop) - before - skipped, 0).ravel()
    first += skipped * streams
    found: Ints = np.repeat(first.ravel() - (np.cumsum(kept) - kept) * streams, kept)
    found += np.arange(0, found.size * streams, streams)
    return found.reshape(len(ends), len(entries))


def _streams_of_parts(parts: StepParts) -> tuple[Ints, Ints]:
    """Return the first position that each stream has of the part of each step, and how many it has,
    both with shape (S, V)."""
    streams = parts.turns.turns.size
    first = parts.turns.turns - (parts.begins % streams)[:, None]
    first += streams * (first < 0)
    each, more = divmod(parts.size, streams)
    counts = (first < more).astype(np.int64)
    counts += each
    first += (parts.begins + parts.shift)[:, None]
    return first, counts


def assign_streams(counts: Ints, streams: int, key: Words | None) -> StreamAssignment:
    """Assign shards of `counts` samples to the streams; without a key in their natural order.

    At least one shard must have samples; those without any are in no stream.
    """
    line = np.flatnonzero(counts)
    if key is not None:
        size = np.array([line.size])
        line = line[_permuted(np.arange(line.size), size, key, np.zeros(line.size, np.int8))]
    ends = np.cumsum(counts[line])
    begins = ends - counts[line]
    cuts = stream_cuts(int(ends[-1]), streams)
    holders = np.minimum(np.searchsorted(ends, cuts[:-1], side="right"), line.size - 1)
    head = cuts[:-1] - begins[holders]
    inside = np.flatnonzero((head > 0) & (cuts[:-1] < ends[-1]))
    starts = np.insert(begins, holders[inside] + 1, cuts[inside])
    return StreamAssignment(
        cuts=cuts,
        first=np.searchsorted(starts, cuts),
        head=head,
        shards=np.insert(line, holders[inside] + 1, line[holders[inside]]).astype(np.int32),
        sizes=np.diff(starts, append=ends[-1:]),
    )


def epochs_of(deal: StreamAssignment, window: int, keys: Words | None) -> list[EpochPieces]:
    """Return the pieces in the order of each epoch that `keys` select, with shape (E,); without
    keys in natural order, of one epoch. Several small ones take little longer than one.

    A stream of n pieces has w = ceil(n / window) windows; number i begins at piece i * n // w.
    """
    pieces = np.diff(deal.first)
    count = -(-pieces // window)
    owner = np.repeat(np.arange(pieces.size), count)
    number = np.arange(owner.size) - (np.cumsum(count) - count)[owner]
    ends = deal.shards.size
    windows = np.append(deal.first[owner] + number * pieces[owner] // count[owner], ends)
    orders = np.arange(ends)[None]
    window_keys: list[Words | None] = [None]
    if keys is not None:
        stream_keys = derive(keys[:, None], np.arange(pieces.size))
        orders = _orders(deal, pieces, derive(stream_keys, 0))
        window_keys = list(derive(stream_keys[:, owner], number + 1))
    found = []
    for order, keys_of_epoch in zip(orders, window_keys, strict=True):
        starts = np.zeros(ends + 1, dtype=np.int64)
        np.cumsum(deal.sizes[order], out=starts[1:])
        found.append(
            EpochPieces(
                order=order.astype(np.int32),
                starts=starts,
                windows=windows,
                window_starts=starts[windows],
                window_streams=owner.astype(np.int32),
                window_keys=keys_of_epoch,
            )
        )
    return found


def _orders(deal: StreamAssignment, pieces: Ints, keys: Words) -> Ints:
    """Return the piece at each place of each epoch, with shape (E, P), by keys of shape (E, V)."""
    epochs, streams = keys.shape
    owner = np.repeat(np.arange(streams, dtype=np.int32), pieces)
    first = deal.first[owner]
    within = np.tile(np.arange(owner.size) - first, epochs)
    which = (np.arange(epochs, dtype=np.int32)[:, None] * streams + owner).ravel()
    _permuted(within, np.tile(pieces, epochs), keys.ravel(), which)
    orders: Ints = within.reshape(epochs, owner.size)
    orders += first
    return orders


def located_jointly(
    epochs: Sequence[tuple[StreamAssignment, EpochPieces, StreamTurns]], which: Ints, within: Ints
) -> tuple[Ints, Ints]:
    """Return (shard, sample in the shard) of positions of several shuffled epochs, with shape (n,).

    Args:
        epochs: of any datasets. Their pieces are copied: they should not be many more than n.
        which: the number of the epoch of each position.
        within: the position in that epoch.
    """
    deals, pieces, turns = zip(*epochs, strict=True)
    counts = np.array([turn.streams.size for turn in turns])
    streams_before = np.cumsum(counts) - counts
    samples = np.array([int(deal.cuts[-1]) for deal in deals])
    lines = np.cumsum(samples) - samples
    places_before = np.cumsum([0, *(deal.shards.size for deal in deals)])[:-1]
    offsets, served = np.divmod(within, counts[which])
    stream = _joined([turn.streams for turn in turns], streams_before)[
        served + streams_before[which]
    ]
    at = _joined([deal.cuts[:-1] for deal in deals], lines)[stream] + offsets
    end = int(samples.sum())
    begins = np.append(_joined([one.window_starts[:-1] for one in pieces], lines), end)
    window = find_ranges(begins, at)
    begin = begins[window]
    keys = np.concatenate([one.window_keys for one in pieces])[window]
    at = begin + permute(at - begin, begins[window + 1] - begin, keys)
    starts = np.append(_joined([one.starts[:-1] for one in pieces], lines), end)
    place = find_ranges(starts, at)
    piece = _joined([one.order for one in pieces], places_before)[place]
    found = at - starts[place]
    heads = np.concatenate([deal.head for deal in deals])[stream]
    found += np.where(
        piece == _joined([deal.first[:-1] for deal in deals], places_before)[stream], heads, 0
    )
    return np.concatenate([deal.shards for deal in deals])[piece].astype(np.int64), found


def distinct(numbers: Ints) -> tuple[Ints, Ints]:
    """Return the different numbers, which are at least 0, and which of them each is: as
    `np.unique`, without sorting if they are not much larger than many."""
    most = int(numbers.max()) + 1
    if most > numbers.size:
        different, which = np.unique(numbers, return_inverse=True)
        return different, which
    is_there = np.zeros(most, dtype=bool)
    is_there[numbers] = True
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[numbers]


def find_ranges(cuts: Ints, numbers: Ints) -> Ints:
    """Return which range each number is in, with shape (n,): range i is [cuts[i], cuts[i + 1]).

    This is `np.searchsorted(cuts, numbers, side="right") - 1` for rising cuts from 0 on, without
    empty ranges. A table tells the range in which a step of 2**k numbers begins; from there it is
    few comparisons, whose outcome no processor has to guess.
    """
    count, end = cuts.size - 1, int(cuts[-1])
    if not count or _FEW_NUMBERS * numbers.size < count:
        return np.asarray(np.searchsorted(cuts, numbers, side="right") - 1)
    shift = max(0, (end // (_STEPS_OF_A_RANGE * count)).bit_length() - 1)
    most = int(np.bincount(cuts[:-1] >> shift).max())  # ranges that begin in one step
    if most > _MOST_COMPARISONS:
        return np.asarray(np.searchsorted(cuts, numbers, side="right") - 1)
    first = (cuts[:-1] + ((1 << shift) - 1)) >> shift  # the first step that begins in each range
    table = np.cumsum(np.bincount(first, minlength=(end >> shift) + 1)) - 1
    found: Ints = table[numbers >> shift]
    for _ in range(most):
        found += cuts[found + 1] <= numbers
    return found


def _joined(columns: Sequence[npt.NDArray[np.integer]], more: Ints) -> Ints:
    """Return columns behind one another, to each of which a number is added."""
    found: Ints = np.concatenate(columns).astype(np.int64)
    found += np.repeat(more, [column.size for column in columns])
    return found


def _permuted(values: Ints, sizes: Ints, keys: Words, which: npt.NDArray[np.integer]) -> Ints:
    """Permute the values in place as `permute` does, where value i has size and key `which[i]`. A
    block at a time, this is 2.5 times as fast for a million values, and uses less memory."""
    for at in range(0, values.size, _BLOCK):
        part = slice(at, at + _BLOCK)
        of = which[part]
        values[part] = permute(values[part], sizes[of], keys[of])
    return values
