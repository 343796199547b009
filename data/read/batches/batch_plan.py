"""What the batches of a rank are made of, from any position on: pure, and the same at every try."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np

from data.errors import DataError
from data.order.rank_shares import GlobalStep, RankShare, Tail, Uneven, shares, step_at, steps_from
from data.read.batches.batch_fetcher import BatchFetcher, BatchWork
from data.read.sample_stream import SampleLocations, SampleStream

_LOCATED = 8192  # positions of all ranks that are located at a time, if batches are no larger
_MOST_STEPS = 64  # that are located at a time


@dataclass(frozen=True)
class Topology:
    """How big a step is, and which part of it is this rank's."""

    batch: int
    """Of all ranks."""
    rank: int
    world: int
    uneven: Uneven
    tail: Tail
    epochs: int | None
    """After which it ends; None: never."""

    def streams(self, of: SampleStream) -> Sequence[range]:
        """Those of each dataset that this rank reads, as far as one can tell."""
        return of.streams_of(self.rank, self.world, self.batch)

    def end(self, of: SampleStream) -> int | None:
        """The first position of the stream that is never read."""
        return None if self.epochs is None else self.epochs * of.samples


class BatchPlan(Protocol):
    """Batches by position: an integer that is the same on every rank and on any topology."""

    @property
    def stream(self) -> SampleStream: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def identity(self) -> dict[str, Any]:
        """What a position means nothing without: JSON values."""

    def work(self, position: int) -> Iterator[BatchWork]:
        """This rank's batches from `position` on. Raises DataError."""

    def fetcher(self, fetcher: BatchFetcher) -> BatchFetcher:
        """What makes batches of the work, of one that makes them of samples."""

    def reading(self, position: int) -> int:
        """Where in the stream of samples those lie that are read at `position`."""

    def resumed(self, state: Mapping[str, Any], position: int) -> "BatchPlan":
        """The one that goes on where `state`, its identity then, was at `position`.

        Raises FingerprintError if that is none of its own.
        """


@dataclass(frozen=True)
class SamplePlan:
    """Samples in their order: a position counts them."""

    stream: SampleStream
    topology: Topology

    def __post_init__(self) -> None:
        try:
            first = step_at(0, self.topology.batch, self.stream.samples, self.topology.tail)
        except ValueError as error:
            raise DataError(str(error)) from error
        self._shares([first])  # raises what is wrong with them

    @property
    def identity(self) -> dict[str, Any]:
        return self.stream.identity

    def work(self, position: int) -> Iterator[BatchWork]:
        """After the first ones many are located at a time, which costs little more than one."""
        of, count = self.topology, 1
        steps = steps_from(position, of.batch, self.stream.samples, of.tail, of.end(self.stream))
        while block := self._block(steps, count):
            most = min(_LOCATED, self.stream.samples) // of.batch  # an order keeps few epochs
            count = min(2 * count, max(1, most), _MOST_STEPS)
            found = self._shares(block)
            places = self.stream.locate(np.concatenate([share.positions for share in found]))
            ends = np.cumsum([len(share.positions) for share in found]).tolist()
            for each, end in zip(found, ends, strict=True):
                part = slice(end - len(each.positions), end)
                yield BatchWork(each, SampleLocations(*(column[part] for column in places)))

    def fetcher(self, fetcher: BatchFetcher) -> BatchFetcher:
        return fetcher

    def reading(self, position: int) -> int:
        return position

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
