"""Making one batch: positions to samples to transformed, collated data. Runs in reader threads."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from data.errors import DataError, SampleError
from data.ordering.bijection import Ints
from data.ordering.placement import Share
from data.reader.batch import Batch, SampleContext
from data.reader.faults import SUBSTITUTES, Faults
from data.reader.opened import OpenedShard, Sample
from data.reader.stream import Stream


class Item(NamedTuple):
    """One sample of a batch."""

    data: Any
    key: str
    number: int
    dataset: int
    bytes: int


@dataclass(frozen=True)
class Times:
    """Seconds that a reader spent on a batch."""

    read_s: float
    transform_s: float


@dataclass(frozen=True)
class Fetcher:
    """Makes this rank's batch of any global step; holds no position, so threads may share it."""

    stream: Stream
    transform: Callable[[Sample, SampleContext], Any] | None
    collate: Callable[[list[Any]], Any] | None
    faults: Faults

    def fetch(self, share: Share) -> tuple[Batch, Times]:
        """The batch of one share.

        Raises SampleError for a sample that is not to be borne, DataError for a collate that fails.
        """
        begun_s = time.perf_counter()
        before = self.faults.count
        samples = self._read(share.positions)
        read_s = time.perf_counter() - begun_s
        items, kept = self._transformed(samples, share.positions)
        positions = share.positions[kept] if len(kept) < len(samples) else share.positions
        data = self._collate([item.data for item in items], positions)
        batch = Batch(
            data=data,
            keys=tuple(item.key for item in items),
            indices=tuple(item.number for item in items),
            datasets=tuple(item.dataset for item in items),
            positions=tuple(positions.tolist()),
            mask=share.mask[kept],
            weight=share.weight,
            epoch=int(share.positions[0]) // self.stream.samples if len(share.positions) else 0,
            errors=self.faults.count - before,
            bytes=sum(item.bytes for item in items),
        )
        return batch, Times(read_s, time.perf_counter() - begun_s - read_s)

    def _read(self, positions: Ints) -> list[Item | SampleError]:
        places = self.stream.locate(positions)
        opened: dict[tuple[int, int], OpenedShard] = {}
        found: list[Item | SampleError] = []
        rows = (positions.tolist(), *(column.tolist() for column in places))
        for position, number, shard, sample in zip(*rows, strict=True):
            try:
                found.append(self._read_one(number, shard, sample, opened))
            except (DataError, OSError) as error:
                found.append(self._said(position, number, shard, sample, error))
        return found

    def _read_one(
        self, number: int, shard: int, sample: int, opened: dict[tuple[int, int], OpenedShard]
    ) -> Item:
        dataset = self.stream.datasets[number]
        if (found := opened.get((number, shard))) is None:
            found = opened[number, shard] = dataset.opened(shard)
        content = found.read(sample)
        size = sum(len(value) for value in content.values() if isinstance(value, bytes))
        return Item(content, content["__key__"], dataset.first[shard] + sample, number, size)

    def _transformed(
        self, samples: list[Item | SampleError], positions: Ints
    ) -> tuple[list[Item], list[int]]:
        """What becomes of the samples, and the numbers of those that are not left out."""
        items: list[Item] = []
        kept: list[int] = []
        for number, (found, position) in enumerate(zip(samples, positions.tolist(), strict=True)):
            item: Item | SampleError | None = self._transform(found, position)
            if isinstance(item, SampleError):
                item = self._instead(item, position)
            elif self.faults.in_a_row:
                self.faults.good()
            if item is not None:
                items.append(item)
                kept.append(number)
        return items, kept

    def _transform(self, found: Item | SampleError, position: int) -> Item | SampleError:
        if isinstance(found, SampleError) or self.transform is None:
            return found
        context = SampleContext(position, position // self.stream.samples, self.stream.seed)
        try:
            return found._replace(data=self.transform(found.data, context))
        except Exception as error:  # noqa: BLE001 (whatever the user's code raises)
            url = found.data["__url__"]
            return _caused(SampleError(position, found.key, url, _say(error)), error)

    def _instead(self, error: SampleError, position: int) -> Item | None:
        """Another sample for a bad one; None to leave it out. Raises what is not to be borne."""
        self.faults.bad(error)
        if self.faults.policy == "skip":
            return None
        for attempt in range(1, SUBSTITUTES + 1):
            other = substitute(position, attempt, self.stream.samples, self.stream.streams)
            (found,) = self._read(np.array([other]))
            item = self._transform(found, position)
            if isinstance(item, Item):
                self.faults.good()
                return item
            self.faults.bad(item)
        raise error

    def _collate(self, items: list[Any], positions: Ints) -> Any:
        if self.collate is None or not items:
            return items
        try:
            return self.collate(items)
        except Exception as error:
            where = f"positions {positions[0]}..{positions[-1]}"
            raise DataError(f"collate failed on {where}: {_say(error)}") from error

    def _said(
        self, position: int, number: int, shard: int, sample: int, error: Exception
    ) -> SampleError:
        dataset = self.stream.datasets[number]
        try:
            key = dataset.opened(shard).index.key(sample)
        except (DataError, OSError):  # that is the error that is told already
            key = f"number {sample}"
        url = dataset.manifest.urls[shard]
        return _caused(SampleError(position, key, url, _say(error)), error)


def substitute(position: int, attempt: int, samples: int, streams: int) -> int:
    """The position whose sample takes the place of a bad one: further on in the same stream, and
    most likely in the same window, then farther and farther; within the epoch, on any topology."""
    epoch, within = divmod(position, samples)
    step = streams * ((1 << attempt) - 1)
    return epoch * samples + (within + step) % samples


def _caused(error: SampleError, cause: Exception) -> SampleError:
    error.__cause__ = cause
    return error


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
