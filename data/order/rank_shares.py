"""The positions of a global step that a rank takes: pure functions of (position, rank, world).

The B positions of a step are sorted by stream, and rank r of R takes [r B / R, (r + 1) B / R) of
them. So neighbouring ranks read neighbouring streams, and a node reads few of them. The union over
ranks is the step, whatever the world size.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from data.order.keyed_permutation import Ints
from data.order.sample_order import MAX_POSITION
from data.order.skipped_ranges import NOTHING_SKIPPED, SkippedRanges

_SORTED = 2**15  # positions that are sorted at a time
_EPOCHS = 64
"""The epochs in which a full step is looked for, as positions that are left out may be many in some
of them."""

Bools: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.integer]
Weights: TypeAlias = npt.NDArray[np.float64]
Tail: TypeAlias = Literal["straddle", "drop", "pad"]
Uneven: TypeAlias = Literal["error", "ragged", "pad"]


class StreamedOrder(Protocol):
    """The methods of an order that the shares of ranks depend on."""

    @property
    def samples(self) -> int: ...

    def stream_of(self, positions: npt.ArrayLike) -> Ints: ...

    def placement_of(self, positions: npt.ArrayLike) -> Numbers:
        """Return the stream of each position, or numbers that sort positions in the same way."""


class GlobalStep(NamedTuple):
    """The global step that begins at a position."""

    positions: Ints
    """Shape (B,)."""
    mask: Bools
    """Shape (B,): False where a position is a repeat that only fills the batch."""
    after: int
    """The position at which the next step begins: the state after this one is delivered."""


class RankShare(NamedTuple):
    """The share of one rank of a step."""

    positions: Ints
    mask: Bools
    weight: float
    """Factor on the rank's mean loss which makes the mean over ranks the mean over samples."""
    after: int


def step_at(
    position: int,
    size: int,
    samples: int,
    tail: Tail = "straddle",
    skipped: SkippedRanges = NOTHING_SKIPPED,
) -> GlobalStep:
    """Return the step of `size` positions from `position` on, of epochs of `samples` positions.

    Where fewer than `size` are left of the epoch, "straddle" continues in the next one (for
    training: nothing is lost or repeated); "drop" leaves them out; "pad" fills up with masked
    repeats from the epoch's beginning. Positions in `skipped` are left out and do not count. Raises
    ValueError for impossible arguments.
    """
    if size < 1 or samples < 1 or not 0 <= position <= MAX_POSITION - size:
        raise ValueError(f"no step at position={position}, size={size}, samples={samples}")
    if tail not in ("straddle", "drop", "pad"):
        raise ValueError(f'tail must be "straddle", "drop" or "pad", got {tail!r}')
    every, all_real = _whole_step(size)
    most = 0
    for _ in range(_EPOCHS if skipped else 2):
        position = skipped.next_kept(position)
        epoch = position // samples
        begin, end = epoch * samples, (epoch + 1) * samples
        at = skipped.kept_before(position)
        left = size if tail == "straddle" else skipped.kept_before(end) - at
        if left >= size:
            positions = skipped.kept_at(at + every)
            return GlobalStep(positions, all_real, int(positions[-1]) + 1)
        if tail == "pad":
            first = skipped.kept_before(begin)
            numbers = first + (at - first + every) % (at + left - first)
            return GlobalStep(skipped.kept_at(numbers), every < left, end)
        position, most = end, max(most, left)
    raise ValueError(
        f'tail="drop" would drop every sample: an epoch has {most}, a batch {size};'
        ' use a smaller batch or tail="pad"'
    )


@lru_cache(maxsize=16)
def _whole_step(size: int) -> tuple[Ints, Bools]:
    """Return the numbers of the positions of a step, and its mask if none is a repeat; neither can
    be changed."""
    every, all_real = np.arange(size, dtype=np.int64), np.ones(size, dtype=bool)
    every.flags.writeable = all_real.flags.writeable = False
    return every, all_real


def share(
    first: int,
    size: int,
    rank: int,
    world: int,
    order: StreamedOrder,
    *,
    uneven: Uneven = "error",
    tail: Tail = "straddle",
    skipped: SkippedRanges = NOTHING_SKIPPED,
) -> RankShare:
    """Return the share of `rank` of `world` in the step of `size` positions at `first`.

    If `world` does not divide `size`: "error" raises; "ragged" gives shares that differ by one, of
    which some are empty if size < world; "pad" fills the shorter ones with a masked repeat. Raises
    ValueError for impossible arguments.
    """
    (found,) = shares(
        [step_at(first, size, order.samples, tail, skipped)], rank, world, order, uneven=uneven
    )
    return found


def shares(
    steps: Sequence[GlobalStep],
    rank: int,
    world: int,
    order: StreamedOrder,
    *,
    uneven: Uneven = "error",
) -> list[RankShare]:
    """Return `share` of many steps of one size, which together cost little more than one."""
    positions = np.stack([step.positions for step in steps])
    masks = np.stack([step.mask for step in steps])
    taken, kept, weights = take_weighted(order.placement_of(positions), masks, rank, world, uneven)
    positions = np.take_along_axis(positions, taken, axis=-1)
    afters = [step.after for step in steps]
    return [RankShare(*row) for row in zip(positions, kept, weights.tolist(), afters, strict=True)]


def shares_of_entries(
    positions: Ints, is_real: Bools, first: int, size: int, world: int
) -> list[RankShare]:
    """Return `share` of successive steps of `size` positions from `first` on, all of them real.

    Args:
        positions: those of the entries that the rank takes, with shape (steps, E).
        is_real: whether each is no repeat, with shape (E,).
    """
    masks = np.tile(is_real, (len(positions), 1))
    weight = int(is_real.sum()) * world / size
    afters = range(first + size, first + size * len(positions) + 1, size)
    each = zip(positions, masks, afters, strict=True)
    return [RankShare(row, mask, weight, after) for row, mask, after in each]


def steps_from(
    position: int,
    size: int,
    samples: int,
    tail: Tail = "straddle",
    end: int | None = None,
    skipped: SkippedRanges = NOTHING_SKIPPED,
) -> Iterator[GlobalStep]:
    """Yield the steps from `position` on, without those that are entirely past `end`.

    So every rank gets the same number of steps, whatever its share of the last one holds. Raises
    ValueError as `step_at`.
    """
    if tail == "straddle" and not skipped:
        yield from _whole_steps(position, size, samples, MAX_POSITION if end is None else end)
        return
    while end is None or position < end:
        step = step_at(position, size, samples, tail, skipped)
        if end is not None and int(step.positions[0]) >= end:
            return  # what was left of the last epoch is dropped
        yield step
        position = step.after


def _whole_steps(position: int, size: int, samples: int, end: int) -> Iterator[GlobalStep]:
    """Yield the steps that begin before `end`, where each begins where the last one has ended."""
    most = MAX_POSITION - size
    while position < end:
        if size < 1 or samples < 1 or not 0 <= position <= most:
            step_at(position, size, samples)  # which raises
        every, all_real = _whole_step(size)
        yield GlobalStep(position + every, all_real, position + size)
        position += size


def take_weighted(
    streams: Numbers, mask: Bools, rank: int, world: int, uneven: Uneven = "error"
) -> tuple[Ints, Bools, Weights]:
    """Return (entries, mask, weight) of a rank, as in `RankShare`, of a step with this mask.

    Otherwise as `take`; of many steps where both have shape (steps, B).
    """
    taken, real = take(streams, rank, world, uneven)
    kept = np.take_along_axis(mask, taken, axis=-1) & real
    return taken, kept, kept.sum(axis=-1) * world / mask.sum(axis=-1)


def take(streams: Numbers, rank: int, world: int, uneven: Uneven = "error") -> tuple[Ints, Bools]:
    """Return the entries of a step that a rank takes: (their numbers, whether each is no repeat).

    `streams` has shape (B,), or (steps, B): the stream of each entry. Raises ValueError as `share`.
    """
    size = streams.shape[-1]
    mine, is_real = entries_of_rank(size, rank, world, uneven)
    if streams.ndim == 1:
        return _sorted_by(streams)[mine], is_real
    # some steps at a time, which stay in a core's cache
    rows = max(1, _SORTED // max(size, 1))
    parts = [_sorted_by(streams[at : at + rows])[:, mine] for at in range(0, len(streams), rows)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts), is_real


def entries_of_rank(
    size: int, rank: int, world: int, uneven: Uneven = "error"
) -> tuple[Ints, Bools]:
    """Return (their numbers, whether each is no repeat) of the entries of a sorted step of `size`
    positions that a rank takes: successive ones, the last of which may be repeated. Raises
    ValueError as `share`."""
    if not 0 <= rank < world:
        raise ValueError(f"rank must be in 0..world-1, got {rank} of {world}")
    if uneven not in ("error", "ragged", "pad"):
        raise ValueError(f'uneven must be "error", "ragged" or "pad", got {uneven!r}')
    if uneven == "error" and size % world:
        raise ValueError(
            f"a batch of {size} cannot be shared evenly by {world} ranks: use a multiple of"
            f' {world}, or uneven="ragged" (shares differ by one) or "pad" (masked repeats)'
        )
    begin, end = rank * size // world, (rank + 1) * size // world
    length = -(-size // world) if uneven == "pad" else end - begin
    numbers = begin + np.arange(length, dtype=np.int64)
    return np.minimum(numbers, max(end - 1, begin, 0)), numbers < end


def _sorted_by(streams: Numbers) -> Ints:
    """Return `np.argsort(streams, axis=-1, kind="stable")` of numbers from 0 to 2**32 - 1. Of 16
    bits it is a radix sort, which takes a fifth of the time."""
    low = np.argsort(streams.astype(np.uint16, copy=False), axis=-1, kind="stable")
    if streams.dtype.itemsize <= 2 or not streams.size or int(streams.max()) < 2**16:
        return low
    high = np.take_along_axis((streams >> 16).astype(np.uint16), low, axis=-1)
    return np.take_along_axis(low, np.argsort(high, axis=-1, kind="stable"), axis=-1)


def streams_of_ranks(first: int, last: int, world: int, size: int, streams: int) -> range:
    """Return the streams that ranks `first` .. `last` - 1 of `world` read in steps of `size`
    positions.

    If V divides the batch these are about V (last - first) / world; otherwise streams move slowly
    between ranks and all that may occur are returned. A step that crosses the end of an epoch may
    reach further. Raises ValueError for impossible arguments.
    """
    if not 0 <= first < last <= world or size < 1 or streams < 1:
        raise ValueError(
            f"no streams of ranks {first}..{last - 1} of {world}, size={size}, streams={streams}"
        )
    begin, end = first * size // world, last * size // world
    each, extra = divmod(size, streams)
    numbers = np.arange(streams, dtype=np.int64)
    earliest = numbers * each + np.maximum(0, extra - (streams - numbers))
    latest = (numbers + 1) * each + np.minimum(numbers + 1, extra)
    read = np.flatnonzero((earliest < end) & (latest > begin))
    return range(int(read[0]), int(read[-1]) + 1) if read.size else range(0)


def mixed_streams_of_rank(
    rank: int, world: int, size: int, shares: Sequence[float], streams: Sequence[int]
) -> list[range]:
    """Return the streams of each dataset of a mixture that `rank` reads in steps of `size`
    positions.

    `shares` are the shares of the positions that belong to each dataset, `streams` how many streams
    it has. Equal parts of each go to equal parts of the ranks, except for one stream and for
    chance: where a step does not take equally many of each stream, those that it takes once more
    are a random choice. Three standard deviations of that are added at both ends, so that hardly
    any position is outside. Raises ValueError for an impossible rank.
    """
    if not 0 <= rank < world or size < 1:
        raise ValueError(f"no streams of rank {rank} of {world}, size={size}")
    chance = 0.0
    for share, count in zip(shares, streams, strict=True):
        left_over = min(share * size, count / 2)
        chance += left_over * (1 - left_over / count) / 4  # hypergeometric, of half the streams
    widest = max(1 / count for share, count in zip(shares, streams, strict=True) if share)
    slack = (3 * chance**0.5 + 1) / size + widest
    low, high = max(0.0, rank / world - slack), min(1.0, (rank + 1) / world + slack)
    return [
        range(int(low * count), min(count, int(high * count) + 1)) if share else range(0)
        for share, count in zip(shares, streams, strict=True)
    ]


def position_after(
    position: int,
    steps: int,
    size: int,
    samples: int,
    tail: Tail,
    skipped: SkippedRanges = NOTHING_SKIPPED,
) -> int:
    """Return the position of the step that comes `steps` steps of `size` positions after
    `position`.

    The steps from there equal those after as many calls of `step_at`; in constant time, unless
    positions are left out with a `tail` other than "straddle". Raises ValueError as `step_at`.
    """
    if steps < 0:
        raise ValueError(f"steps must not be negative, got {steps}")
    if skipped and tail != "straddle":
        for step in islice(steps_from(position, size, samples, tail, skipped=skipped), steps):
            position = step.after
        return position
    step_at(position, size, samples, tail)
    if tail == "straddle":
        return skipped.later(position, steps * size)
    each = samples // size if tail == "drop" else -(-samples // size)
    epoch, within = divmod(position, samples)
    left = (samples - within) // size if tail == "drop" else -(-(samples - within) // size)
    if steps < left:
        return position + steps * size
    epochs, rest = divmod(steps - left, each)
    return (epoch + 1 + epochs) * samples + rest * size


def count_steps(
    position: int,
    end: int,
    size: int,
    samples: int,
    tail: Tail,
    skipped: SkippedRanges = NOTHING_SKIPPED,
) -> int:
    """Return how many steps `steps_from` yields from `position` to `end`, the end of an epoch.

    Without skipped positions, or with `tail` "straddle", in constant time; else it visits the
    epochs. Raises ValueError as `step_at`.
    """
    if position >= end:
        return 0
    if not skipped or tail == "straddle":
        step_at(position, size, samples, tail)
    if tail == "straddle":
        return -(-(skipped.kept_before(end) - skipped.kept_before(position)) // size)
    if not skipped:
        epochs = (end - position) // samples
        return epochs * _steps(samples, size, tail) + _steps((end - position) % samples, size, tail)
    found = 0
    while position < end:
        epoch_end = (position // samples + 1) * samples
        left = skipped.kept_before(epoch_end) - skipped.kept_before(position)
        found += _steps(left, size, tail)
        position = epoch_end
    return found


def _steps(left: int, size: int, tail: Tail) -> int:
    """Return the steps of the rest of an epoch."""
    return left // size if tail == "drop" else -(-left // size)
