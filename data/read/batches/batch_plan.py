"""The plan of a rank's batches from any position on: pure, and the same each time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Protocol, TypeAlias

import numpy as np

from data.errors import DataError
from data.order.batch_ramp import BatchRamp
from data.order.rank_shares import (
    GlobalStep,
    RankShare,
    Tail,
    Uneven,
    count_steps,
    entries_of_rank,
    shares,
    shares_of_entries,
    step_at,
    steps_from,
)
from data.order.recurring_skips import MixedSkips
from data.order.sample_order import MAX_POSITION
from data.order.skipped_ranges import NOTHING_SKIPPED, SkippedRanges
from data.read.batches.batch_fetcher import BatchFetcher, BatchWork
from data.read.sample_stream import (
    SampleLocations,
    SampleStream,
    joined_ranges,
    recurring_skips,
)

_LOCATED = 2**18  # positions of all ranks that are sorted at a time, unless batches are larger
_LOCATED_ENTRIES = 2**20  # the same, where only those of this rank are looked at
_MOST_STEPS = 512  # steps that are located at a time
_EPOCHS = 4  # that are located at a time, as an order caches few

_LocatedShares: TypeAlias = tuple[Sequence[RankShare], SampleLocations]
"""The shares of some steps and where their samples are, each column with shape (steps, E)."""


@dataclass(frozen=True)
class Topology:
    """The size of a global step and which share of it this rank takes."""

    batch: int
    """Samples of a step, over all ranks."""
    rank: int
    world: int
    uneven: Uneven
    tail: Tail
    epochs: int | None
    """The number of epochs after which it ends; None: never."""
    ramp: BatchRamp | None = None
    """How the step grows to `batch` samples; None: it always has as many."""

    def streams(self, of: SampleStream) -> Sequence[range]:
        """Return the streams of each dataset that this rank reads, as far as is known
        beforehand."""
        each = [of.streams_of(self.rank, self.world, size) for size in self.sizes]
        return [joined_ranges(ranges) for ranges in zip(*each, strict=True)]

    @property
    def sizes(self) -> Sequence[int]:
        """The samples that a step may have."""
        return (self.batch,) if self.ramp is None else self.ramp.sizes

    @property
    def least_sizes(self) -> Sequence[int]:
        """Some of these sizes: if the world divides them, it divides all."""
        return sorted({*self.sizes[:2], self.sizes[-1]})

    def size_at(self, seen: int) -> int:
        """Return the samples of the step before which there were `seen` samples."""
        return self.batch if self.ramp is None else self.ramp.size_at(seen)

    def stages(self, seen: int) -> Iterator[tuple[int, int | None]]:
        """Yield (samples of a step, number of such steps) as `BatchRamp.stages`."""
        return iter([(self.batch, None)]) if self.ramp is None else self.ramp.stages(seen)

    def end(self, of: SampleStream) -> int | None:
        """Return the first position of the stream that is never read."""
        return None if self.epochs is None else of.epoch_begin(self.epochs)


class BatchPlan(Protocol):
    """The batches of a rank, by position: an integer that is the same on every rank and any
    topology."""

    @property
    def stream(self) -> SampleStream: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def skipped(self) -> SkippedRanges:
        """The positions that are left out, and whose samples are left out in later epochs."""

    @property
    def identity(self) -> dict[str, Any]:
        """The identity that a position belongs to, as JSON values."""

    @property
    def streams(self) -> Sequence[range]:
        """The streams of each dataset that this rank reads, as far as is known beforehand."""

    def seen(self, position: int) -> int | None:
        """Return the samples of all steps before `position`; None: the position does not tell."""

    def work(self, position: int, seen: int = 0) -> Iterator[BatchWork]:
        """Yield this rank's batches from `position` on, before which there were `seen` samples,
        where the position does not tell. Raises DataError."""

    def steps(self, position: int, end: int) -> int:
        """Return the number of batches from `position` on to `end`, the end of an epoch. Raises
        TypeError where that is not known without making them."""

    def fetcher(self, fetcher: BatchFetcher) -> BatchFetcher:
        """Return the fetcher that makes batches of the work, given one that makes batches of
        samples."""

    @property
    def ended(self) -> list[int]:
        """The numbers of the datasets of which no sample comes any more, as all of them are left
        out."""

    def stream_position(self, position: int) -> int:
        """Return the position in the stream of the samples that are read at `position`."""

    def skipping(self, skipped: SkippedRanges) -> "BatchPlan":
        """Return the plan that leaves out these positions, and no others."""

    def resumed(self, state: Mapping[str, Any], position: int) -> "BatchPlan":
        """Return the plan that continues where `state`, its identity when saved, was at `position`.

        Raises FingerprintError if that state belongs to another stream.
        """


@dataclass(frozen=True)
class SamplePlan:
    """Batches of samples in their order: a position counts samples."""

    stream: SampleStream
    topology: Topology
    skipped: SkippedRanges = NOTHING_SKIPPED

    def __post_init__(self) -> None:
        try:
            samples, tail = self.stream.samples, self.topology.tail
            firsts = [step_at(0, size, samples, tail) for size in self.topology.least_sizes]
        except ValueError as error:
            raise DataError(str(error)) from error
        for first in firsts:
            self._shares([first])  # raises if the arguments are invalid

    @property
    def identity(self) -> dict[str, Any]:
        return self.stream.identity

    @cached_property
    def left_out(self) -> SkippedRanges:
        """The positions in `skipped`, and those of the same samples in later epochs."""
        return recurring_skips(self.stream, self.skipped)

    @property
    def streams(self) -> Sequence[range]:
        return self.topology.streams(self.stream)

    def seen(self, position: int) -> int:
        return self.left_out.kept_before(position)

    def work(self, position: int, seen: int = 0) -> Iterator[BatchWork]:
        """Yield the batches; after the first ones, many steps are located at once, which costs
        little more than one."""
        of = self.topology
        seen, last = self.seen(position), of.end(self.stream)
        for size, number in of.stages(seen):
            for found, places in self._located(position, size, number, last):
                for each, *where in zip(found, *places, strict=True):
                    yield BatchWork(each, SampleLocations(*where), None, seen, size)
                    position = each.after
                    seen = seen + size if of.tail == "straddle" else self.seen(position)

    def _located(
        self, position: int, size: int, number: int | None, last: int | None
    ) -> Iterator[_LocatedShares]:
        """Yield the shares of `number` steps of `size` positions from `position` on, of those that
        begin before `last`; some of them at a time."""
        of = self.topology
        if of.tail == "straddle" and not self.left_out:
            end = MAX_POSITION if last is None else last
            left = max(0, -(-(end - position) // size))
            yield from self._whole(position, size, left if number is None else min(number, left))
            return
        every = steps_from(position, size, self.stream.samples, of.tail, last, self.left_out)
        steps = islice(every, number)
        for count in self._counts(size, _LOCATED):
            if not (block := self._block(steps, count)):
                return
            yield self._sorted(block)

    def _whole(self, position: int, size: int, number: int) -> Iterator[_LocatedShares]:
        """Yield as `_located` steps each of which begins where the one before has ended."""
        for count in self._counts(size, _LOCATED_ENTRIES):
            count = min(count, number)
            number -= count
            if not count:
                return
            if (found := self._entries(position, size, count)) is not None:
                yield found
            else:
                steps = islice(steps_from(position, size, self.stream.samples), count)
                while block := self._block(steps, max(1, _LOCATED // size)):
                    yield self._sorted(block)
            position += count * size

    def _counts(self, size: int, most: int) -> Iterator[int]:
        """Yield how many steps of `size` positions are located at a time, of at most about `most`
        positions."""
        orders = sum(order.samples for order in self.stream.orders)
        most = min(most, _EPOCHS * min(self.stream.samples, orders)) // size
        count = 1
        while True:
            yield count
            count = min(2 * count, max(1, most), _MOST_STEPS)

    def _entries(self, position: int, size: int, count: int) -> _LocatedShares | None:
        """Return the shares of `count` steps, without a look at the positions of other ranks; None:
        they have to be sorted."""
        of = self.topology
        entries, is_real = entries_of_rank(size, of.rank, of.world, of.uneven)
        if not entries.size or position + count * size > MAX_POSITION:
            return None
        first = int(entries[0])
        each = range(first, int(entries[-1]) + 1)
        found = self.stream.entries_of(position, size, count, each)
        if found is None:
            return None
        positions, places = found
        if len(each) < entries.size:  # the last one is repeated
            positions = positions[:, entries - first]
            places = SampleLocations(*(column[:, entries - first] for column in places))
        return shares_of_entries(positions, is_real, position, size, of.world), places

    def _sorted(self, block: list[GlobalStep]) -> _LocatedShares:
        """Return the shares of steps, whose positions are sorted."""
        found = self._shares(block)
        positions = np.stack([share.positions for share in found])
        return found, self.stream.locate(positions)

    def steps(self, position: int, end: int) -> int:
        of, samples = self.topology, self.stream.samples
        if of.ramp is not None:
            return of.ramp.steps_between(self.seen(position), self.seen(end))
        try:
            return count_steps(position, end, of.batch, samples, of.tail, self.left_out)
        except ValueError as error:
            raise DataError(str(error)) from error

    def fetcher(self, fetcher: BatchFetcher) -> BatchFetcher:
        return fetcher

    def stream_position(self, position: int) -> int:
        return position

    @property
    def ended(self) -> list[int]:
        return self.left_out.ended if isinstance(self.left_out, MixedSkips) else []

    def skipping(self, skipped: SkippedRanges) -> "SamplePlan":
        plan = replace(self, skipped=skipped)
        _ = plan.left_out  # raises if no sample would be left
        return plan

    def resumed(self, state: Mapping[str, Any], position: int) -> "SamplePlan":
        return replace(self, stream=self.stream.resumed(state, position))

    @staticmethod
    def _block(steps: Iterator[GlobalStep], count: int) -> list[GlobalStep]:
        try:
            return list(islice(steps, count))
        except ValueError as error:
            raise DataError(str(error)) from error

    def _shares(self, steps: list[GlobalStep]) -> list[RankShare]:
        of = self.topology
        try:
            return shares(steps, of.rank, of.world, self.stream, uneven=of.uneven)
        except ValueError as error:
            raise DataError(str(error)) from error
