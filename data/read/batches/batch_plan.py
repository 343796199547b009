"""The plan of a rank's batches from any position on: pure, and the same each time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np

from data.errors import DataError
from data.order.rank_shares import (
    GlobalStep,
    RankShare,
    Tail,
    Uneven,
    count_steps,
    shares,
    step_at,
    steps_from,
)
from data.order.skipped_ranges import NOTHING_SKIPPED, SkippedRanges
from data.read.batches.batch_fetcher import BatchFetcher, BatchWork
from data.read.sample_stream import SampleLocations, SampleStream

_LOCATED = 8192  # positions of all ranks that are located at a time, unless batches are larger
_MOST_STEPS = 64  # steps that are located at a time


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

    def streams(self, of: SampleStream) -> Sequence[range]:
        """Return the streams of each dataset that this rank reads, as far as is known
        beforehand."""
        return of.streams_of(self.rank, self.world, self.batch)

    def end(self, of: SampleStream) -> int | None:
        """Return the first position of the stream that is never read."""
        return None if self.epochs is None else self.epochs * of.samples


class BatchPlan(Protocol):
    """The batches of a rank, by position: an integer that is the same on every rank and any
    topology."""

    @property
    def stream(self) -> SampleStream: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def skipped(self) -> SkippedRanges:
        """The positions that are left out."""

    @property
    def identity(self) -> dict[str, Any]:
        """The identity that a position belongs to, as JSON values."""

    @property
    def streams(self) -> Sequence[range]:
        """The streams of each dataset that this rank reads, as far as is known beforehand."""

    def work(self, position: int) -> Iterator[BatchWork]:
        """Yield this rank's batches from `position` on. Raises DataError."""

    def steps(self, position: int, end: int) -> int:
        """Return the number of batches from `position` on to `end`, the end of an epoch. Raises
        TypeError where that is not known without making them."""

    def fetcher(self, fetcher: BatchFetcher) -> BatchFetcher:
        """Return the fetcher that makes batches of the work, given one that makes batches of
        samples."""

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
            first = step_at(0, self.topology.batch, self.stream.samples, self.topology.tail)
        except ValueError as error:
            raise DataError(str(error)) from error
        self._shares([first])  # raises if the arguments are invalid

    @property
    def identity(self) -> dict[str, Any]:
        return self.stream.identity

    @property
    def streams(self) -> Sequence[range]:
        return self.topology.streams(self.stream)

    def work(self, position: int) -> Iterator[BatchWork]:
        """Yield the batches; after the first ones, many steps are located at once, which costs
        little more than one."""
        of, count = self.topology, 1
        samples, end = self.stream.samples, of.end(self.stream)
        steps = steps_from(position, of.batch, samples, of.tail, end, self.skipped)
        while block := self._block(steps, count):
            most = min(_LOCATED, self.stream.samples) // of.batch  # an order caches few epochs
            count = min(2 * count, max(1, most), _MOST_STEPS)
            found = self._shares(block)
            places = self.stream.locate(np.concatenate([share.positions for share in found]))
            ends = np.cumsum([len(share.positions) for share in found]).tolist()
            for each, end in zip(found, ends, strict=True):
                part = slice(end - len(each.positions), end)
                yield BatchWork(each, SampleLocations(*(column[part] for column in places)))

    def steps(self, position: int, end: int) -> int:
        of, samples = self.topology, self.stream.samples
        try:
            return count_steps(position, end, of.batch, samples, of.tail, self.skipped)
        except ValueError as error:
            raise DataError(str(error)) from error

    def fetcher(self, fetcher: BatchFetcher) -> BatchFetcher:
        return fetcher

    def stream_position(self, position: int) -> int:
        return position

    def skipping(self, skipped: SkippedRanges) -> "SamplePlan":
        return replace(self, skipped=skipped)

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
