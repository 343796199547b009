"""What a loader reads: one dataset in its order, or several under a mixture."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from data.errors import DataError
from data.order.keyed_permutation import Ints
from data.order.mixture import MIX, MixedOrder, Mixture, MixtureSegment, segment
from data.order.rank_shares import mixed_streams_of_rank, streams_of_ranks
from data.order.sample_order import Order
from data.order.shard_uses import ShardUse, uses_ahead
from data.read.dataset import Dataset
from data.read.stream_identity import State, check_same, digest_of, of_dataset


class SampleLocations(NamedTuple):
    """Where the samples of some positions lie; each of shape (positions,)."""

    datasets: Ints
    shards: Ints
    samples: Ints


Reads: TypeAlias = Sequence[Collection[int]] | None
"""Streams of each dataset; None: all."""


class SampleStream(Protocol):
    """An endless sequence of samples, the same on any number of ranks."""

    @property
    def datasets(self) -> Sequence[Dataset]: ...

    @property
    def orders(self) -> Sequence[Order]:
        """Of each dataset."""

    @property
    def seed(self) -> int: ...

    @property
    def samples(self) -> int:
        """Of an epoch."""

    @property
    def streams(self) -> int:
        """How many take turns."""

    @property
    def identity(self) -> dict[str, Any]:
        """What names it: JSON values."""

    def locate(self, positions: Ints) -> SampleLocations: ...

    def stream_of(self, positions: npt.ArrayLike) -> Ints: ...

    def streams_of(self, rank: int, world: int, size: int) -> Sequence[range]:
        """Of each dataset: the streams that a rank reads in steps of `size`, as far as is known."""

    def ahead(self, position: int, streams: Reads = None) -> Iterator[tuple[int, ShardUse]]:
        """(dataset, use of one of its shards), by first position, in positions of this stream."""

    def resumed(self, state: State, position: int) -> SampleStream:
        """The one that goes on where `state`, its identity then, was at `position`.

        Raises FingerprintError if that is none of its own.
        """


class SingleStream:
    """One dataset."""

    def __init__(self, dataset: Dataset, order: Order) -> None:
        self.datasets, self.orders = (dataset,), (order,)
        self.order, self.seed = order, order.seed

    @property
    def samples(self) -> int:
        return self.order.samples

    @property
    def streams(self) -> int:
        return self.order.streams

    @property
    def identity(self) -> dict[str, Any]:
        return of_dataset(self.order.identity, self.datasets[0].fingerprint)

    def locate(self, positions: Ints) -> SampleLocations:
        shards, samples = self.order.locate(positions)
        return SampleLocations(np.zeros_like(shards), shards, samples)

    def stream_of(self, positions: npt.ArrayLike) -> Ints:
        return self.order.stream_of(positions)

    def streams_of(self, rank: int, world: int, size: int) -> Sequence[range]:
        return [streams_of_ranks(rank, rank + 1, world, size, self.streams)]

    def ahead(self, position: int, streams: Reads = None) -> Iterator[tuple[int, ShardUse]]:
        of_rank = None if streams is None else streams[0]
        return ((0, use) for use in uses_ahead(self.order, position, of_rank))

    def resumed(self, state: State, position: int) -> SampleStream:
        check_same(state, self.identity)
        return self


class MixedStream:
    """Several datasets, mixed by weights that may change when a run goes on."""

    def __init__(
        self, datasets: Sequence[Dataset], orders: Sequence[Order], mixture: Mixture
    ) -> None:
        self.datasets = tuple(datasets)
        self.orders, self.mixture, self.seed = tuple(orders), mixture, mixture.seed
        self._order = MixedOrder(self.orders, mixture)

    @property
    def samples(self) -> int:
        return self.mixture.samples

    @property
    def streams(self) -> int:
        return 1  # a bad sample's substitute may be the next one, of whichever dataset

    @property
    def identity(self) -> dict[str, Any]:
        each = zip(self.orders, self.datasets, strict=True)
        return {
            "order": MIX,
            "seed": self.seed,
            "block": self.mixture.block,
            "datasets": [
                digest_of(of_dataset(order.identity, dataset.fingerprint))
                for order, dataset in each
            ],
            "segments": [[part.position, list(part.parts)] for part in self.mixture.segments],
        }

    def locate(self, positions: Ints) -> SampleLocations:
        return SampleLocations(*self._order.locate(positions))

    def stream_of(self, positions: npt.ArrayLike) -> Ints:
        return self._order.stream_of(positions)

    def streams_of(self, rank: int, world: int, size: int) -> Sequence[range]:
        parts = self.mixture.segments[-1].parts
        shares = [part / sum(parts) for part in parts]
        counts = [order.streams for order in self.orders]
        return mixed_streams_of_rank(rank, world, size, shares, counts)

    def ahead(self, position: int, streams: Reads = None) -> Iterator[tuple[int, ShardUse]]:
        """Of each dataset in turn, by what it has given so far."""
        at = self.mixture.consumed(position).tolist()
        parts = self.mixture.segments[-1].parts
        walks = []
        for number, (order, begun, part) in enumerate(zip(self.orders, at, parts, strict=True)):
            if part:
                uses = uses_ahead(order, begun, None if streams is None else streams[number])
                walks.append(_scaled(number, uses, begun, position, sum(parts) / part))
        return _merged(walks)

    def resumed(self, state: State, position: int) -> SampleStream:
        told = dict(state)
        segments = [MixtureSegment(int(at), tuple(parts)) for at, parts in told.pop("segments", [])]
        mine = self.identity
        weights = mine.pop("segments")[-1][1]
        check_same(told, mine)
        try:
            before = Mixture(segments, seed=self.seed, block=self.mixture.block)
            if list(segments[-1].parts) != weights:
                before = before.then(position, weights)
        except (ValueError, TypeError, IndexError) as error:
            raise DataError(f"not a loader's state: its segments cannot be: {error}") from error
        return MixedStream(self.datasets, self.orders, before)


def live_shards(stream: SampleStream, reads: Sequence[Collection[int]]) -> int:
    """How many shards the samples of some streams come from at a time, at most."""
    each = zip(stream.datasets, stream.orders, reads, strict=True)
    return sum(min(len(dataset.manifest), order.window * len(of)) for dataset, order, of in each)


def mean_bytes(stream: SampleStream) -> float:
    """Of a sample in its shard, with its headers; at least 1."""
    total = sum(int(dataset.manifest.bytes.sum()) for dataset in stream.datasets)
    return max(1.0, total / sum(map(len, stream.datasets)))


def store_counts(stream: SampleStream) -> dict[str, float]:
    """What the node stores of its datasets have done for this process, in sum: the counters of
    `data.cache.cache_metrics.CacheMetrics` by their names."""
    counts = Counter[str]()
    for store in {dataset.store for dataset in stream.datasets}:
        counts.update(store.metrics.counts())
    return dict(counts)


def mixed(
    datasets: Sequence[Dataset],
    weights: Sequence[float],
    *,
    seed: int = 0,
    streams: int = 48,
    window: int = 8,
    block: int = 1024,
) -> MixedStream:
    """Datasets mixed by weight: of K positions each gives its share, for ever.

    A loader that loads the state of one with other weights goes on with these ones; each dataset's
    own samples go on where they were. Raises DataError for impossible arguments.
    """
    try:
        if len(datasets) != len(weights):
            raise ValueError(f"{len(datasets)} datasets and {len(weights)} weights")
        orders = [
            order_of(dataset, seed=seed, streams=streams, window=window) for dataset in datasets
        ]
        mixture = Mixture([segment(0, weights)], seed=seed, block=block)
    except ValueError as error:
        raise DataError(str(error)) from error
    return MixedStream(datasets, orders, mixture)


def order_of(
    dataset: Dataset, *, seed: int, streams: int = 48, window: int = 8, shuffle: bool = True
) -> Order:
    """The order of a dataset's samples. Raises DataError for impossible arguments."""
    if len(dataset) == 0:
        raise DataError(f"the dataset has no samples in its {len(dataset.manifest)} shards")
    try:
        return Order(
            dataset.manifest.samples, seed=seed, streams=streams, window=window, shuffle=shuffle
        )
    except ValueError as error:
        raise DataError(str(error)) from error


def in_order(dataset: Dataset, *, samples: int | None = None, seed: int = 0) -> SingleStream:
    """The samples of a dataset as they lie, or so many of them: the first ones of each shard, in
    proportion. `seed` is what transforms are given. Raises DataError for impossible arguments."""
    counts, total = dataset.manifest.samples, len(dataset)
    if samples is not None and samples < total:
        counts = np.diff(np.cumsum(counts) * samples // total, prepend=0)
    try:
        return SingleStream(dataset, Order(counts, seed=seed, shuffle=False))
    except ValueError as error:
        raise DataError(str(error)) from error


def _scaled(
    number: int, uses: Iterator[ShardUse], begun: int, position: int, scale: float
) -> Iterator[tuple[int, ShardUse]]:
    """Positions of a dataset's own as positions of the mixture, nearly."""
    for use in uses:
        first = position + int((use.first - begun) * scale)
        yield number, ShardUse(first, position + int((use.last - begun) * scale), use.shard)


def _merged(walks: Sequence[Iterator[tuple[int, ShardUse]]]) -> Iterator[tuple[int, ShardUse]]:
    return heapq.merge(*walks, key=lambda found: found[1].first)
