"""The streams that a loader reads: one dataset in its order, or several under a mixture."""

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
from data.order.sample_order import Order, OrderOptions
from data.order.shard_uses import ShardUse, uses_ahead
from data.read.dataset import Dataset
from data.read.stream_identity import State, check_same, digest_of, of_dataset


class SampleLocations(NamedTuple):
    """The places of the samples at some positions; each field has shape (positions,)."""

    datasets: Ints
    shards: Ints
    samples: Ints


Reads: TypeAlias = Sequence[Collection[int]] | None
"""The streams of each dataset that are read; None: all."""


class SampleStream(Protocol):
    """An endless sequence of samples, the same on any number of ranks."""

    @property
    def datasets(self) -> Sequence[Dataset]: ...

    @property
    def orders(self) -> Sequence[Order]:
        """The order of each dataset."""

    @property
    def seed(self) -> int: ...

    @property
    def samples(self) -> int:
        """The number of samples of an epoch."""

    @property
    def streams(self) -> int:
        """The number of virtual streams that take turns."""

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of the stream, as JSON values."""

    def locate(self, positions: Ints) -> SampleLocations: ...

    def stream_of(self, positions: npt.ArrayLike) -> Ints: ...

    def streams_of(self, rank: int, world: int, size: int) -> Sequence[range]:
        """Return the streams of each dataset that a rank reads in steps of `size`, as far as is
        known."""

    def ahead(self, position: int, streams: Reads = None) -> Iterator[tuple[int, ShardUse]]:
        """Yield (dataset, use of one of its shards), by first position, in positions of this
        stream."""

    def resumed(self, state: State, position: int) -> SampleStream:
        """Return the stream that continues where `state`, its identity when saved, was at
        `position`.

        Raises FingerprintError if that state belongs to another stream.
        """


class SingleStream:
    """The stream of one dataset."""

    def __init__(self, dataset: Dataset, order: Order) -> None:
        self.datasets, self.orders = (dataset,), (order,)
        self.order, self.seed = order, order.seed

    @classmethod
    def of(cls, dataset: Dataset, options: OrderOptions) -> SingleStream:
        """Return the stream of a dataset in the order of `options`. Raises DataError for impossible
        ones."""
        order = order_of(
            dataset,
            seed=options.seed,
            streams=options.streams,
            window=options.window,
            shuffle=options.shuffle,
            remix_every=options.remix_every,
        )
        return cls(dataset, order)

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
    """The stream of several datasets, mixed by weights that may change when a run is resumed."""

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
        return 1  # a bad sample's substitute may be the next one, of any dataset

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
        """Yield the next uses of all datasets, ordered by how far each has been read."""
        at = self.mixture.consumed(position).tolist()
        parts = self.mixture.segments[-1].parts
        walks = []
        for number, (order, begun, part) in enumerate(zip(self.orders, at, parts, strict=True)):
            if part:
                uses = uses_ahead(order, begun, None if streams is None else streams[number])
                walks.append(_scaled(number, uses, begun, position, sum(parts) / part))
        return _merged(walks)

    def resumed(self, state: State, position: int) -> SampleStream:
        saved = dict(state)
        segments = [
            MixtureSegment(int(at), tuple(parts)) for at, parts in saved.pop("segments", [])
        ]
        mine = self.identity
        weights = mine.pop("segments")[-1][1]
        check_same(saved, mine)
        try:
            before = Mixture(segments, seed=self.seed, block=self.mixture.block)
            if list(segments[-1].parts) != weights:
                before = before.then(position, weights)
        except (ValueError, TypeError, IndexError) as error:
            raise DataError(f"not a loader's state: its segments are not valid: {error}") from error
        return MixedStream(self.datasets, self.orders, before)


def live_shards(stream: SampleStream, reads: Sequence[Collection[int]]) -> int:
    """Return how many shards the samples of some streams come from at a time, at most."""
    each = zip(stream.datasets, stream.orders, reads, strict=True)
    return sum(min(len(dataset.manifest), order.window * len(of)) for dataset, order, of in each)


def mean_bytes(stream: SampleStream) -> float:
    """Return the mean bytes of a sample in its shard, with its headers; at least 1."""
    total = sum(int(dataset.manifest.bytes.sum()) for dataset in stream.datasets)
    return max(1.0, total / sum(map(len, stream.datasets)))


def store_counts(stream: SampleStream) -> dict[str, float]:
    """Return the counters of all node stores of its datasets, for this process, in sum, by the
    names of `data.cache.cache_metrics.CacheMetrics`."""
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
    remix_every: int = 0,
    block: int = 1024,
) -> MixedStream:
    """Mix datasets by weight: of each `block` positions each gets its share, without end.

    A loader that loads the state of one with other weights continues with these weights; each
    dataset's own samples continue where they were. `seed`, `streams`, `window` and `remix_every`
    are those of each dataset's order, see `OrderOptions`. Raises DataError for impossible
    arguments.
    """
    try:
        if len(datasets) != len(weights):
            raise ValueError(f"{len(datasets)} datasets, but {len(weights)} weights")
        orders = [
            order_of(dataset, seed=seed, streams=streams, window=window, remix_every=remix_every)
            for dataset in datasets
        ]
        mixture = Mixture([segment(0, weights)], seed=seed, block=block)
    except ValueError as error:
        raise DataError(str(error)) from error
    return MixedStream(datasets, orders, mixture)


def order_of(
    dataset: Dataset,
    *,
    seed: int,
    streams: int = 48,
    window: int = 8,
    shuffle: bool = True,
    remix_every: int = 0,
) -> Order:
    """Return the order of a dataset's samples. Raises DataError for impossible arguments."""
    if len(dataset) == 0:
        raise DataError(f"the dataset has no samples in its {len(dataset.manifest)} shards")
    try:
        return Order(
            dataset.manifest.samples,
            seed=seed,
            streams=streams,
            window=window,
            shuffle=shuffle,
            remix_every=remix_every,
        )
    except ValueError as error:
        raise DataError(str(error)) from error


def in_order(dataset: Dataset, *, samples: int | None = None, seed: int = 0) -> SingleStream:
    """Return the samples of a dataset in their stored order, or `samples` of them: the first ones
    of each shard, in proportion. `seed` is passed to transforms. Raises DataError for impossible
    arguments."""
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
    """Convert positions of a dataset to positions of the mixture, approximately."""
    for use in uses:
        first = position + int((use.first - begun) * scale)
        yield number, ShardUse(first, position + int((use.last - begun) * scale), use.shard)


def _merged(walks: Sequence[Iterator[tuple[int, ShardUse]]]) -> Iterator[tuple[int, ShardUse]]:
    return heapq.merge(*walks, key=lambda found: found[1].first)
