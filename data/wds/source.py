"""The source half of a pipeline: the stream, and this process's share of its steps, read ahead."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.cache.store import NodeStore
from data.indexing.access import is_url
from data.indexing.listing import Shards
from data.indexing.manifest import Manifest
from data.ordering.placement import Share
from data.reader.ahead import Ahead, has_far
from data.reader.alone import Alone
from data.reader.batch import Batch, Times
from data.reader.dataset import Dataset, open_dataset
from data.reader.descriptors import SHARDS
from data.reader.direct import WHOLE_BYTES
from data.reader.faults import Faults
from data.reader.fetch import Fetcher, Work
from data.reader.grouping import Grouped
from data.reader.opened import Check
from data.reader.stream import Mixed, One, Places, Stream, live_shards, mean_bytes, order_of
from data.reader.together import settle
from data.source.sources import Sources
from data.wds.cursor import Cursor
from data.wds.steps import Steps

_LOCATED = 4096  # positions that are located at a time
_BLOCK = 32  # samples at least that a thread reads at a time


@dataclass(frozen=True)
class Origin:
    """What is read and in what order, before it is opened."""

    shards: Shards | Dataset | Stream
    cache: str | Path | None = None
    cache_bytes: int = 0
    sources: Sources | None = None
    seed: int = 0
    streams: int = 48
    window: int = 8
    shuffle: bool = True
    check: Check = "auto"
    manifest: Manifest | None = None
    """Of the shards, once they were opened: another process need not index them again."""

    @property
    def far(self) -> bool:
        """Whether to open it takes requests."""
        if isinstance(self.shards, str | Path):
            return is_url(str(self.shards))
        if isinstance(self.shards, Sequence):
            return any(is_url(str(shard)) for shard in self.shards)
        return False

    @property
    def is_open(self) -> bool:
        """Whether it was given open."""
        return not isinstance(self.shards, str | Path | Sequence)

    def open(self) -> Stream:
        """The stream. Raises DataError."""
        shards = self.shards
        if isinstance(shards, Dataset):
            return self._ordered(shards)
        if not isinstance(shards, str | Path | Sequence):
            return shards
        if self.manifest is None:
            opened = open_dataset(
                shards,
                cache=self.cache,
                cache_bytes=self.cache_bytes,
                sources=self.sources,
                check=self.check,
            )
            return self._ordered(opened)
        folder = Path(self.cache or ".")
        budget = self.cache_bytes if self.cache else 0
        store = NodeStore(folder, budget, sources=self.sources or Sources())
        return self._ordered(Dataset(self.manifest, store, self.check))

    def opened_as(self, stream: Stream) -> "Origin":
        """For another process, which is not to index the shards again."""
        return replace(self, manifest=stream.datasets[0].manifest)

    def _ordered(self, dataset: Dataset) -> Stream:
        order = order_of(
            dataset,
            seed=self.seed,
            streams=self.streams,
            window=self.window,
            shuffle=self.shuffle,
        )
        return One(dataset, order)


def after_fork(stream: Stream) -> Stream:
    """The same, with none of the locks that threads of the parent may have held."""
    datasets = [Dataset(each.manifest, each.store, each.check) for each in stream.datasets]
    if isinstance(stream, One):
        return One(datasets[0], stream.order)
    if isinstance(stream, Mixed):
        return Mixed(datasets, stream.orders, stream.mixture)
    return stream


class Read(NamedTuple):
    """This rank's share of one step, as bytes."""

    batch: Batch
    times: Times
    share: Share
    begin: int
    """The position of the step; `share.after` is that of the next one."""


@dataclass(frozen=True)
class Reader:
    """Reads shares of steps ahead in threads."""

    stream: Stream
    steps: Steps
    faults: Faults
    depth: int
    threads: int
    downloads: int

    @property
    def fetcher(self) -> Fetcher:
        return Fetcher(self.stream, None, None, self.faults)

    def read(self, cursor: Cursor, stride: int) -> Generator[Read, None, None]:
        """Every `stride`-th step from `cursor` to its `until`. Close it to end its threads."""
        fetch, at = self.fetcher.fetch, _At(cursor.position)
        streams = self.stream.streams_of(*self.steps.ranks, self.steps.size)
        SHARDS.check(live_shards(self.stream, streams))
        most = -(-_BLOCK * self.steps.ranks.world // self.steps.size)
        is_far = has_far(self.stream)
        is_small = not is_far and mean_bytes(self.stream) <= WHOLE_BYTES
        made: Grouped[tuple[Work, int], Read] = Grouped(
            lambda found: Read(*fetch(found[0]), found[0].share, found[1]),
            self._works(cursor, stride),
            most=most if self.threads else 1,
            depth=self.depth,
            threads=self.threads,
            alone=Alone() if is_small else None,
        )
        ahead = None
        if is_far:
            ahead = Ahead(
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
            settle(self.stream)
        finally:
            made.close("the iteration was closed")
            if ahead is not None:
                ahead.close()

    def read_one(self, position: int) -> Any:
        """The sample at a position, which may stand in for another. Raises as `Fetcher.fetch`."""
        positions = np.array([position])
        share = Share(positions, np.ones(1, dtype=bool), 1.0, position + 1)
        batch, _ = self.fetcher.fetch(Work(share, self.stream.locate(positions)))
        return batch.data[0] if batch.data else None

    def _works(self, cursor: Cursor, stride: int) -> Iterator[tuple[Work, int]]:
        begins = self.steps.begins(cursor.position, cursor.until)
        begins = islice(begins, cursor.skip, None, stride)
        count = max(1, _LOCATED * self.steps.ranks.world // self.steps.size)
        while block := list(islice(begins, count)):
            shares = [self.steps.share(begin, end) for begin, end in block]
            places = self.stream.locate(np.concatenate([share.positions for share in shares]))
            at = 0
            for (begin, _), share in zip(block, shares, strict=True):
                part = slice(at, at + len(share.positions))
                at = part.stop
                yield Work(share, Places(*(column[part] for column in places))), begin


class _At:
    """Where the consumer is."""

    def __init__(self, position: int) -> None:
        self.position = position


def _next(call: Callable[[], Read]) -> Read | None:
    try:
        return call()
    except StopIteration:
        return None
