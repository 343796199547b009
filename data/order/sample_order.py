"""The order of samples: a pure function from position to (shard, sample), on any number of ranks.

Position p of the infinite stream lies in epoch p // N. The V streams take turns: position q of an
epoch is at offset q // V of the stream whose turn is q % V, which is an exact bijection on [0, N).
Samples of a stream are permuted inside windows of at most G shards, so few shards are live at a
time.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from data.order.keyed_permutation import (
    MAX_SIZE,
    Ints,
    Words,
    check_seed,
    derive,
    permute,
    root_key,
    unpermute,
)
from data.order.virtual_streams import (
    EpochPieces,
    StepParts,
    StreamAssignment,
    StreamTurns,
    assign_streams,
    entries_of_steps,
    epochs_of,
    find_ranges,
    turns_of,
)

ORDER = "order-1"
"""Frozen: a change of any value of `locate` needs a new name."""
NATURAL = "natural-1"
"""The name of the order without a shuffle: every epoch has the samples in their stored order."""

MAX_POSITION = 2**62
MAX_STREAMS = 2**16
MAX_WINDOW = 2**31 - 1
_DEAL, _EPOCH, _TURNS = 0, 1, 3  # purposes of keys
_BLOCK = 2**14
_KEEP = 3  # groups of epochs kept: of the one that is read, the one prefetched, the one before
_KEEP_TURNS = 8  # the same for turns, which are small: more are kept
_MOST_EPOCHS = 64  # that are planned together, where they are small: it takes as long as one
_MOST_PIECES = 2**13  # of epochs that are planned together

Identity: TypeAlias = dict[str, str | int]
_Plan = TypeVar("_Plan", StreamAssignment, list[EpochPieces], list[StreamTurns])


@dataclass(frozen=True, kw_only=True)
class OrderOptions:
    """The options of the order of a dataset's samples."""

    seed: int = 0
    shuffle: bool = True
    """False: samples come in the order in which they are stored."""
    streams: int | None = None
    """The number of virtual streams of shards that take turns; None: 48, and fewer of tables with
    large groups of rows, see `data.read.stream_sizes`."""
    window: int | None = None
    """The shards of each stream whose samples are shuffled with one another: samples are shuffled
    among `streams` times `window` shards. None: 8, and fewer of such tables."""
    remix_every: int = 0
    """The number of epochs after which shards are assigned to streams again; 0: a shard stays in
    its stream for the whole run, which keeps it on the same nodes."""


class OrderPart(NamedTuple):
    """A part of an order that is one of its own."""

    order: "Order"
    shift: int
    """What a position of the whole is more than in it."""
    begin: int
    """The position of the whole at which it begins."""
    end: int | None
    """The epoch before which it ends; None: it has no end."""


@dataclass(frozen=True)
class EpochLookup:
    """Positions of one epoch of an order, up to their permutation."""

    here: slice | Ints
    """Where they are among the positions that were asked for."""
    deal: StreamAssignment
    epoch: EpochPieces
    streams: Ints
    at: Ints
    """Where they are in the epoch, stream by stream, before samples are permuted in windows."""

    def located(self, at: Ints) -> tuple[Ints, Ints]:
        """Return (shard, sample in the shard) of each position.

        Args:
            at: as `self.at`, permuted.
        """
        deal, epoch = self.deal, self.epoch
        place = find_ranges(epoch.starts, at)
        piece = epoch.order[place]
        samples = at - epoch.starts[place]
        samples += np.where(piece == deal.first[self.streams], deal.head[self.streams], 0)
        return deal.shards[piece].astype(np.int64), samples


def fill(shards: Ints, samples: Ints, lookups: Sequence[EpochLookup]) -> None:
    """Write shard and sample of each position to where it is, with shape (n,).

    The permutation of few positions takes almost as long as that of thousands, so it is one of all
    lookups.
    """
    shuffled = [lookup for lookup in lookups if lookup.epoch.window_keys is not None]
    for lookup, at in zip(shuffled, _permuted(shuffled), strict=True):
        shards[lookup.here], samples[lookup.here] = lookup.located(at)
    for lookup in lookups:
        if lookup.epoch.window_keys is None:
            shards[lookup.here], samples[lookup.here] = lookup.located(lookup.at)


def _permuted(lookups: Sequence[EpochLookup]) -> list[Ints]:
    """Return where the positions of each lookup are once they are permuted in their windows."""
    if not lookups:
        return []
    starts, sizes, keys = [], [], []
    for lookup in lookups:
        epoch = lookup.epoch
        assert epoch.window_keys is not None
        window = find_ranges(epoch.window_starts, lookup.at)
        starts.append(epoch.window_starts[window])
        sizes.append(epoch.window_starts[window + 1] - starts[-1])
        keys.append(epoch.window_keys[window])
    start = np.concatenate(starts)
    within = np.concatenate([lookup.at for lookup in lookups]) - start
    at = start + permute(within, np.concatenate(sizes), np.concatenate(keys))
    ends = np.cumsum([lookup.at.size for lookup in lookups])
    return np.split(at, ends[:-1])


class Order:
    """The order of the samples of shards with `counts` samples each, without end.

    Shards are assigned to `streams` (V) streams once per run, or again every `remix_every` epochs;
    `window` (G) shards of each stream are live at a time. Without `shuffle` the order is the
    natural one, in one stream. Memory is O(shards); safe to use from many threads. Raises
    ValueError for impossible arguments.
    """

    def __init__(
        self,
        counts: npt.ArrayLike,
        *,
        seed: int = 0,
        streams: int = 48,
        window: int = 8,
        shuffle: bool = True,
        remix_every: int = 0,
    ) -> None:
        self.counts = _checked_counts(counts)
        seed, streams = whole_number("seed", seed), whole_number("streams", streams)
        window = whole_number("window", window)
        remix_every = whole_number("remix_every", remix_every)
        check_seed(seed)
        if not 1 <= streams <= MAX_STREAMS:
            raise ValueError(f"streams must be in 1..{MAX_STREAMS}, got {streams}")
        if not (1 <= window <= MAX_WINDOW and 0 <= remix_every <= MAX_POSITION):
            raise ValueError(
                f"window must be in 1..{MAX_WINDOW} and remix_every at least 0,"
                f" got {window} and {remix_every}"
            )
        self.samples = int(self.counts.sum())
        """Samples per epoch."""
        self.seed = seed
        self.streams = streams if shuffle else 1
        self.window = window if shuffle else 1
        self.shuffle = shuffle
        self.remix_every = remix_every if shuffle else 0
        most = int(np.count_nonzero(self.counts)) + self.streams  # pieces of an epoch
        self._together = max(1, min(_MOST_EPOCHS, _MOST_PIECES // most)) if shuffle else 1
        """Epochs that are planned together."""
        self._deals: dict[int, StreamAssignment] = {}
        self._epochs: dict[int, list[EpochPieces]] = {}
        self._turns: dict[int, list[StreamTurns]] = {}

    @property
    def identity(self) -> Identity:
        """The identity of this order, besides the dataset: two orders with equal identities are
        equal."""
        if not self.shuffle:
            return {"order": NATURAL}
        fields: Identity = {
            "order": ORDER,
            "seed": self.seed,
            "streams": self.streams,
            "window": self.window,
        }
        return fields | ({"remix": self.remix_every} if self.remix_every else {})

    def locate(self, positions: npt.ArrayLike) -> tuple[Ints, Ints]:
        """Return (shard, sample in the shard) of each position, in the shape of `positions`.

        Positions are integers in 0..2**62 and may mix epochs; each aligned run of `samples`
        positions yields every sample exactly once. Raises TypeError, ValueError.
        """
        asked = checked_positions(positions)
        flat = asked.ravel()
        shards, samples = np.empty_like(flat), np.empty_like(flat)
        for lookup in self.lookups(flat):
            fill(shards, samples, [lookup])
        return shards.reshape(asked.shape), samples.reshape(asked.shape)

    def lookups(self, positions: Ints) -> Iterator[EpochLookup]:
        """Yield what is known of these positions, with shape (n,), before they are permuted.
        `fill` permutes the positions of several orders together."""
        for number, here, within in self._by_epoch(positions):
            deal, epoch = self.plan(number)
            offsets, turns = np.divmod(within, self.streams)
            streams = self.turns(number).streams[turns]
            yield EpochLookup(here, deal, epoch, streams, deal.cuts[streams] + offsets)

    def positions_in(self, epoch: int, shards: Ints, samples: Ints) -> Ints:
        """Return the position in epoch number `epoch` of each (shard, sample in the shard), with
        shape (n,): the inverse of `locate`. Values out of range are not checked."""
        deal, pieces = self.plan(epoch)
        before = np.concatenate([[0], np.cumsum(self.counts)[:-1]])  # samples of earlier shards
        begins = np.zeros(deal.shards.size, dtype=np.int64)  # of each piece, in its shard
        is_there = deal.first[:-1] < begins.size
        begins[deal.first[:-1][is_there]] = deal.head[is_there]
        numbers = before[deal.shards] + begins
        by_number = np.argsort(numbers, kind="stable")
        found = np.searchsorted(numbers[by_number], before[shards] + samples, side="right") - 1
        piece = by_number[found]
        streams = np.searchsorted(deal.first, piece, side="right") - 1
        places = np.empty(pieces.order.size, dtype=np.int64)
        places[pieces.order] = np.arange(places.size)
        at = pieces.starts[places[piece]] + samples - begins[piece]
        if pieces.window_keys is not None:
            window = np.searchsorted(pieces.window_starts, at, side="right") - 1
            start = pieces.window_starts[window]
            size = pieces.window_starts[window + 1] - start
            at = start + unpermute(at - start, size, pieces.window_keys[window])
        within = (at - deal.cuts[streams]) * self.streams + self.turns(epoch).turns[streams]
        positions: Ints = epoch * self.samples + within
        return positions

    def of_first(self, shards: int) -> "Order":
        """Return the order, by the same options, of the first `shards` shards alone. Raises
        ValueError if they have no samples."""
        return Order(
            self.counts[:shards],
            seed=self.seed,
            streams=self.streams,
            window=self.window,
            shuffle=self.shuffle,
            remix_every=self.remix_every,
        )

    def stream_of(self, positions: npt.ArrayLike) -> Ints:
        """Return the stream of each position, in 0..streams - 1, in the shape of `positions`."""
        asked = checked_positions(positions)
        return self.streams_at(asked.ravel()).reshape(asked.shape)

    def streams_at(self, positions: Ints) -> Ints:
        """Return `stream_of` of positions that are right, with shape (n,)."""
        streams = np.empty_like(positions)
        for epoch, here, within in self._by_epoch(positions):
            streams[here] = self.turns(epoch).streams[within % self.streams]
        return streams

    def placement_of(self, positions: npt.ArrayLike) -> Ints:
        """Return numbers by which ranks take positions: those of `stream_of`."""
        return self.stream_of(positions)

    def entries_of(self, position: int, size: int, steps: int, entries: range) -> Ints | None:
        """Return the positions of some entries of each of `steps` steps of `size` positions, the
        first of which begins at `position`, sorted by `stream_of` and then by position; with shape
        (steps, entries). The others are not looked at. None: to sort them takes less time."""
        if size > self.samples or size < self.streams:
            return None
        found = []
        while steps:
            epoch, within = divmod(position, self.samples)
            shift, left = position - within, self.samples - within
            whole = min(steps, left // size)
            begins = within + np.arange(max(1, whole)) * size
            parts = [StepParts(self.turns(epoch), begins, min(size, left), shift)]
            if not whole:  # this step reaches into the next epoch
                begins, shift = np.array([0]), shift + self.samples
                parts.append(StepParts(self.turns(epoch + 1), begins, size - left, shift))
            found.append(entries_of_steps(parts, entries))
            position += max(1, whole) * size
            steps -= max(1, whole)
        return np.concatenate(found)

    def epoch_of(self, position: int) -> int:
        """Return the epoch that a position is in."""
        return position // self.samples

    def epochs_of(self, positions: Ints) -> Ints:
        """Return the epoch of each position, in the shape of `positions`."""
        epochs: Ints = positions // self.samples
        return epochs

    def epoch_begin(self, epoch: int) -> int:
        """Return the first position of an epoch."""
        return epoch * self.samples

    @property
    def last_change(self) -> int:
        """The last epoch after which epochs have other samples; -1: there is none."""
        return -1

    def parts_from(self, position: int) -> Iterator[OrderPart]:
        """Yield the parts from the one that `position` is in, in each of which all epochs have the
        same samples."""
        yield OrderPart(self, 0, 0, None)

    def _by_epoch(self, positions: Ints) -> Iterator[tuple[int, slice | Ints, Ints]]:
        """Yield (epoch, indices, positions in the epoch), a block of one epoch at a time."""
        for at in range(0, positions.size, _BLOCK):
            block = positions[at : at + _BLOCK]
            first, last = int(block.min()) // self.samples, int(block.max()) // self.samples
            if first == last:  # all positions are in one epoch, as in most blocks
                yield first, slice(at, at + block.size), block - first * self.samples
                continue
            epochs, within = np.divmod(block, self.samples)
            for epoch in np.unique(epochs).tolist():
                here = np.flatnonzero(epochs == epoch)
                yield epoch, here + at, within[here]

    def plan(self, number: int) -> tuple[StreamAssignment, EpochPieces]:
        """Return the assignment and the order of the pieces in epoch `number`; the last few are
        cached.

        Two threads may compute the same one: the results are equal, and dicts are replaced as a
        whole.
        """
        era = number // self.remix_every if self.remix_every else 0
        dealt = self._deals.get(era)
        if dealt is None:
            dealt = assign_streams(self.counts, self.streams, self._key(_DEAL, era))
            self._deals = _with(self._deals, era, dealt, 2)
        begin = era * self.remix_every
        first = number - (number - begin) % self._together
        epochs = self._epochs.get(first)
        if epochs is None:
            last = first + self._together
            end = min(last, begin + self.remix_every) if self.remix_every else last
            keys = self._key(_EPOCH, np.arange(first, end))
            epochs = epochs_of(dealt, self.window, keys)
            self._epochs = _with(self._epochs, first, epochs, _KEEP)
        return dealt, epochs[number - first if self.shuffle else 0]

    def turns(self, number: int) -> StreamTurns:
        """Return the turns of the streams in epoch `number`; the last few are cached."""
        first = number - number % self._together
        turns = self._turns.get(first)
        if turns is None:
            keys = self._key(_TURNS, np.arange(first, first + self._together))
            turns = turns_of(self.samples, self.streams, keys)
            self._turns = _with(self._turns, first, turns, _KEEP_TURNS)
        return turns[number - first if self.shuffle else 0]

    def _key(self, purpose: int, numbers: npt.ArrayLike) -> Words | None:
        return derive(root_key(self.seed, purpose), numbers) if self.shuffle else None


def whole_number(name: str, value: object) -> int:
    """Return a whole number of whatever type, such as one of numpy's, as int, which JSON has.
    Raises ValueError for anything else."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from error


def checked_positions(positions: npt.ArrayLike) -> Ints:
    """Return `positions` as int64. Raises TypeError unless integers, ValueError outside
    0..2**62."""
    found = np.asarray(positions)
    if found.size and not np.issubdtype(found.dtype, np.integer):
        raise TypeError(f"positions must be integers, got dtype {found.dtype}")
    if found.size and not 0 <= int(found.min()) <= int(found.max()) <= MAX_POSITION:
        raise ValueError(f"positions must be in 0..2**62, got {found.min()}..{found.max()}")
    return found.astype(np.int64)


def _checked_counts(counts: npt.ArrayLike) -> Ints:
    found = np.asarray(counts)
    if found.ndim != 1 or (found.size and not np.issubdtype(found.dtype, np.integer)):
        raise ValueError("counts must be one integer per shard")
    if found.size and int(found.min()) < 0:
        raise ValueError(f"shard {int(found.argmin())} has a negative count, {found.min()}")
    roughly = float(found.sum(dtype=np.float64))  # cannot overflow
    samples = int(found.sum()) if roughly < 2 * MAX_SIZE else int(roughly)
    if not 1 <= samples <= MAX_SIZE:
        raise ValueError(f"an order needs 1..2**53 samples, {found.size} shards have {samples}")
    return found.astype(np.int64)


def _with(kept: dict[int, _Plan], number: int, made: _Plan, keep: int) -> dict[int, _Plan]:
    return {**dict(list(kept.items())[1 - keep :]), number: made}
