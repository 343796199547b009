"""The source of a pipeline: the stream, and this process's share of its steps, read ahead."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.cache.node_store import NodeStore
from data.errors import PipelineError
from data.index.manifest import Manifest
from data.index.shard_access import is_url
from data.index.shard_listing import Shards
from data.order.mixture import Mixture, segment
from data.order.rank_shares import RankShare
from data.order.sample_order import Order
from data.read.bad_samples import BadSampleBudget
from data.read.batch import Batch, BatchTimes
from data.read.batches.batch_fetcher import BatchFetcher, BatchWork
from data.read.batches.grouped_prefetch import GroupedPrefetcher
from data.read.batches.inline_reads import InlineReadDecision
from data.read.batches.parallel_open import await_verification
from data.read.batches.shard_prefetch import ShardPrefetcher, has_remote_shards
from data.read.dataset import Dataset, open_dataset
from data.read.sample_stream import (
    MixedStream,
    SampleLocations,
    SampleStream,
    SingleStream,
    check_order_options,
    live_shards,
    mean_bytes,
    order_of,
)
from data.read.shards.local_file_samples import WHOLE_BYTES
from data.read.shards.open_descriptors import OPEN_SHARDS
from data.source.sources import Sources
from data.wds.pass_steps import PassSteps
from data.wds.pipeline_cursor import Cursor
from data.wds.pipeline_errors import webdataset_errors
from data.wds.ranks_and_workers import ranks
from data.wds.streaming_options import StreamingOptions

_LOCATED = 4096  # positions that are located at a time
_OTHER_SEED = 0x9E3779B9  # between the seeds of a dataset that is in a mixture several times
_BLOCK = 32  # samples at least that a thread reads at a time


class PartOfMixture(NamedTuple):
    """The shards of one dataset of a mixture, and the options that are its own."""

    shards: Shards
    options: StreamingOptions


@dataclass(frozen=True)
class ShardMixture:
    """Several datasets that are mixed by weights, before they are opened."""

    parts: tuple[PartOfMixture, ...]
    weights: tuple[float, ...]
    block: int
    """The number of positions of which each dataset gets its share."""


@dataclass(frozen=True)
class PipelineInput:
    """The input of a pipeline before it is opened: what is read and in what order."""

    shards: Shards | Dataset | SampleStream | ShardMixture
    options: StreamingOptions
    manifests: tuple[Manifest, ...] | None = None
    """The manifests of the shards, once they were opened, so that another process need not index
    them again."""

    @property
    def is_remote(self) -> bool:
        """Whether opening it takes requests."""
        if isinstance(self.shards, str | Path):
            return is_url(str(self.shards))
        if isinstance(self.shards, ShardMixture):
            inputs = [PipelineInput(*part) for part in self.shards.parts]
            return any(each.is_remote for each in inputs)
        if isinstance(self.shards, Sequence):
            return any(is_url(str(shard)) for shard in self.shards)
        return False

    @property
    def is_open(self) -> bool:
        """Whether it was given as an open dataset."""
        return not isinstance(self.shards, str | Path | Sequence | ShardMixture)

    def open(self) -> SampleStream:
        """Open the stream. Raises DataError."""
        shards, options = self.shards, self.options
        if isinstance(shards, Dataset):
            return SingleStream.of(shards, options)
        if isinstance(shards, ShardMixture):
            return self._open_mixture(shards)
        if not isinstance(shards, str | Path | Sequence):
            check_order_options(shards, options)
            return shards
        return SingleStream.of(self._open_shards(shards, options, 0), options)

    def _open_mixture(self, mixture: ShardMixture) -> SampleStream:
        """Open all datasets. One that is there several times comes in another order each time."""
        datasets: list[Dataset] = []
        orders: list[Order] = []
        for number, (shards, options) in enumerate(mixture.parts):
            dataset = self._open_shards(shards, options, number)
            same = sum(dataset.fingerprint == other.fingerprint for other in datasets)
            orders.append(
                order_of(
                    dataset,
                    seed=(options.seed + same * _OTHER_SEED) % 2**63,
                    streams=options.streams,
                    window=options.window,
                    shuffle=options.shuffle,
                    remix_every=options.remix_every,
                )
            )
            datasets.append(dataset)
        try:
            first = segment(0, mixture.weights)
            mixed = Mixture([first], seed=self.options.seed, block=mixture.block)
        except ValueError as error:
            raise PipelineError(str(error)) from error
        return MixedStream(datasets, orders, mixed)

    def _open_shards(self, shards: Shards, options: StreamingOptions, number: int) -> Dataset:
        if self.manifests is None:
            with webdataset_errors():
                return open_dataset(
                    shards,
                    cache=options.cache,
                    cache_bytes=options.cache_bytes,
                    sources=options.sources,
                    check=options.check,
                    broken_shards="skip" if _skips_broken(options) else "raise",
                    repeated_shards=options.repeated_shards,
                    rename_files=options.rename_files,
                )
        folder = Path(options.cache or ".")
        budget = options.cache_bytes if options.cache else 0
        store = NodeStore(folder, budget, sources=options.sources or Sources())
        return Dataset(self.manifests[number], store, options.check)

    def opened_as(self, stream: SampleStream) -> "PipelineInput":
        """Return the input with the manifests of `stream`, for another process, which then need not
        index the shards again."""
        manifests = tuple(dataset.manifest for dataset in stream.datasets)
        shards = self.shards
        if isinstance(shards, ShardMixture):
            parts = tuple(PartOfMixture(one.shards, _sent(one.options)) for one in shards.parts)
            shards = replace(shards, parts=parts)
        return replace(self, shards=shards, manifests=manifests, options=_sent(self.options))


def _sent(options: StreamingOptions) -> StreamingOptions:
    """Return the options without the function whose result is in the manifests: it may be one that
    cannot be sent."""
    return replace(options, rename_files=None)


def after_fork(stream: SampleStream) -> SampleStream:
    """Return the stream with new locks, since threads of the parent may have held the old ones."""
    datasets = [Dataset(each.manifest, each.store, each.check) for each in stream.datasets]
    if isinstance(stream, SingleStream):
        return SingleStream(datasets[0], stream.order)
    if isinstance(stream, MixedStream):
        return MixedStream(datasets, stream.orders, stream.mixture, stream.names)
    return stream


def _skips_broken(options: StreamingOptions) -> bool:
    """Return whether shards that are no tar are left out. Of several ranks, one may see a shard cut
    short that another sees whole, on a network file system, and each would have other samples."""
    is_alone = ranks(options.rank, options.world_size).world == 1
    return is_alone and (options.read_errors or options.errors) == "skip"


class ShareRead(NamedTuple):
    """This rank's share of one step, as bytes."""

    batch: Batch
    times: BatchTimes
    share: RankShare
    begin: int
    """The position at which the step begins; `share.after` is that of the next step."""


@dataclass(frozen=True)
class ShareReader:
    """Reads shares of steps ahead in threads."""

    stream: SampleStream
    steps: PassSteps
    faults: BadSampleBudget
    depth: int
    threads: int
    downloads: int

    @property
    def fetcher(self) -> BatchFetcher:
        return BatchFetcher(self.stream, None, None, self.faults)

    def read(self, cursor: Cursor, stride: int) -> Generator[ShareRead, None, None]:
        """Yield every `stride`-th step from `cursor` to its `until`. Close the generator to end its
        threads."""
        fetch, at = self.fetcher.fetch, _ConsumerPosition(cursor.position)
        streams = self.stream.streams_of(*self.steps.ranks, self.steps.size)
        OPEN_SHARDS.check_live(live_shards(self.stream, streams))
        most = -(-_BLOCK * self.steps.ranks.world // self.steps.size)
        is_far = has_remote_shards(self.stream)
        is_small = not is_far and mean_bytes(self.stream) <= WHOLE_BYTES
        made: GroupedPrefetcher[tuple[BatchWork, int], ShareRead] = GroupedPrefetcher(
            lambda found: ShareRead(*fetch(found[0]), found[0].share, found[1]),
            self._works(cursor, stride),
            most=most if self.threads else 1,
            depth=self.depth,
            threads=self.threads,
            inline=InlineReadDecision() if is_small else None,
        )
        ahead = None
        if is_far:
            ahead = ShardPrefetcher(
                self.stream,
                lambda: at.position,
                streams,
                end=cursor.until,
                downloads=self.downloads,
            )
        try:
            while (found := _next(made.next)) is not None:
                at.position = found.begin
                yield found
            await_verification(self.stream)
        finally:
            made.close("the iteration was closed")
            if ahead is not None:
                ahead.close()

    def read_one(self, position: int) -> tuple[Any, int] | None:
        """Return the sample at a position and the number of its dataset, as a substitute for
        another one; None if it cannot be read either. Raises as `BatchFetcher.fetch`."""
        positions = np.array([position])
        share = RankShare(positions, np.ones(1, dtype=bool), 1.0, position + 1)
        batch, _ = self.fetcher.fetch(BatchWork(share, self.stream.locate(positions)))
        return (batch.data[0], batch.datasets[0]) if batch.data else None

    def _works(self, cursor: Cursor, stride: int) -> Iterator[tuple[BatchWork, int]]:
        begins = self.steps.begins(cursor.position, cursor.until)
        begins = islice(begins, cursor.skip, None, stride)
        most = min(_LOCATED, min(map(len, self.stream.datasets)))  # an order caches few epochs
        count = max(1, most * self.steps.ranks.world // self.steps.size)
        while block := list(islice(begins, count)):
            shares = [self.steps.share(begin, end) for begin, end in block]
            places = self.stream.locate(np.concatenate([share.positions for share in shares]))
            at = 0
            for (begin, _), share in zip(block, shares, strict=True):
                part = slice(at, at + len(share.positions))
                at = part.stop
                yield BatchWork(share, SampleLocations(*(column[part] for column in places))), begin


class _ConsumerPosition:
    """The present position of the consumer."""

    def __init__(self, position: int) -> None:
        self.position = position


def _next(call: Callable[[], ShareRead]) -> ShareRead | None:
    try:
        return call()
    except StopIteration:
        return None
