"""Making one batch: positions to samples to transformed, collated data. Runs in reader threads."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from data.errors import DataError, SampleError
from data.order.rank_shares import Bools, RankShare
from data.read.bad_samples import SUBSTITUTES, BadSampleBudget
from data.read.batch import Batch, BatchTimes, SampleContext
from data.read.batches.parallel_open import open_in_parallel, parallel_reads
from data.read.sample_stream import SampleLocations, SampleStream
from data.read.shards.local_file_samples import Sample
from data.read.shards.piece_reads import Contents, Piece, SampleReader, failing, read_pieces


class BatchWork(NamedTuple):
    """One batch to make: what this rank takes of a step, and where that lies."""

    share: RankShare
    places: SampleLocations
    extra: Any = None
    """What a fetcher that makes no plain batches needs besides."""


@dataclass
class BatchRows:
    """The samples of a batch, as lists of equal length."""

    positions: list[int]
    datasets: list[int]
    numbers: list[int]
    samples: list[Any]
    errors: dict[int, SampleError]
    """Of those that could not be read or transformed, by their number here."""
    bytes: int = 0
    bad: int = 0
    """How many errors there were."""

    def keep(self, kept: list[int]) -> None:
        for name in ("positions", "datasets", "numbers", "samples"):
            column = getattr(self, name)
            setattr(self, name, [column[number] for number in kept])


@dataclass(frozen=True)
class BatchFetcher:
    """Makes this rank's batch of any global step; holds no position, so threads may share it."""

    stream: SampleStream
    transform: Callable[[Sample, SampleContext], Any] | None
    collate: Callable[[list[Any]], Any] | None
    faults: BadSampleBudget

    def fetch(self, work: BatchWork) -> tuple[Batch, BatchTimes]:
        """The batch of one share.

        Raises SampleError for a sample that is not to be borne, DataError for a collate that fails.
        """
        begun_s = time.perf_counter()
        share = work.share
        rows = self._read(share.positions.tolist(), work.places)
        keys = [sample and sample["__key__"] for sample in rows.samples]
        read_s = time.perf_counter() - begun_s
        self._transform(rows)
        self._check(rows, work)
        kept = self._mend(rows, keys)
        batch = Batch(
            data=self._collate(rows, self._items(rows, work, kept)),
            keys=tuple(keys),
            indices=tuple(rows.numbers),
            datasets=tuple(rows.datasets),
            positions=tuple(rows.positions),
            mask=self._mask(work, kept),
            weight=share.weight,
            epoch=min(rows.positions, default=0) // self.stream.samples,
            errors=rows.bad,
            bytes=rows.bytes,
        )
        return batch, BatchTimes(read_s, time.perf_counter() - begun_s - read_s)

    def _check(self, rows: BatchRows, work: BatchWork) -> None:
        """Whether what the transform made is what was asked for."""

    def _items(self, rows: BatchRows, work: BatchWork, kept: list[int] | None) -> list[Any]:
        """What is collated; `kept` as of `_mend`."""
        return rows.samples

    def _mask(self, work: BatchWork, kept: list[int] | None) -> Bools:
        return work.share.mask if kept is None else work.share.mask[kept]

    def _read(self, positions: list[int], places: SampleLocations) -> BatchRows:
        """All that is to be read is, before the first sample is made of it: see `pieces`."""
        datasets, shards, samples = (column.tolist() for column in places)
        rows = BatchRows(positions, datasets, self._numbers(places), [], {})
        lies = list(zip(datasets, shards, strict=True))
        wanted = dict.fromkeys(lies)
        open_in_parallel(self.stream, wanted)
        readers = {place: self._reader(*place) for place in wanted}
        each = [readers[place] for place in lies]
        contents = self._contents(each, samples)
        keep, total = rows.samples.append, 0
        with parallel_reads(each, samples) as makes:
            for make, sample in zip(makes, samples, strict=True):
                try:
                    made, size = make(sample, contents)
                    keep(made)
                    total += size
                except (DataError, OSError) as error:
                    row = len(rows.samples)
                    rows.errors[row] = self._said(positions[row], *lies[row], sample, error)
                    keep(None)
        rows.bytes = total
        return rows

    @staticmethod
    def _contents(readers: list[SampleReader], samples: list[int]) -> Contents:
        """Of all that is asked for."""
        pieces: list[Piece] = []
        for reader, sample in zip(readers, samples, strict=True):
            if (ask := reader.ask) is not None:
                ask(sample, pieces)
        return read_pieces(pieces)

    def _reader(self, which: int, shard: int) -> SampleReader:
        try:
            return self.stream.datasets[which].opened(shard).reader
        except (DataError, OSError) as error:  # told of each of its samples
            return failing(error)

    def _numbers(self, places: SampleLocations) -> list[int]:
        """Of each sample, in its dataset."""
        datasets = self.stream.datasets
        if len(datasets) == 1:
            numbers: list[int] = (datasets[0].starts[places.shards] + places.samples).tolist()
            return numbers
        each = zip(*(column.tolist() for column in places), strict=True)
        return [datasets[which].first[shard] + sample for which, shard, sample in each]

    def _transform(self, rows: BatchRows) -> None:
        if self.transform is None:
            return
        for row, (sample, position) in enumerate(zip(rows.samples, rows.positions, strict=True)):
            if row in rows.errors:
                continue
            context = SampleContext(position, position // self.stream.samples, self.stream.seed)
            try:
                rows.samples[row] = self.transform(sample, context)
            except Exception as error:  # noqa: BLE001 (whatever the user's code raises)
                said = SampleError(position, sample["__key__"], sample["__url__"], _say(error))
                rows.errors[row] = _caused(said, error)

    def _mend(self, rows: BatchRows, keys: list[str]) -> list[int] | None:
        """Put other samples in the place of bad ones, or leave them out: then the numbers of those
        that are kept. Raises what is not to be borne."""
        if not rows.errors:
            if rows.samples and self.faults.in_a_row:
                self.faults.good()
            return None
        errors, rows.errors = rows.errors, {}
        rows.bad = len(errors)
        for row, error in sorted(errors.items()):
            self.faults.bad(error)
            if self.faults.policy == "substitute":
                self._substitute(rows, keys, row, error)
        if self.faults.policy == "substitute":
            return None
        kept = [row for row in range(len(keys)) if row not in errors]
        if kept:
            self.faults.good()
        rows.keep(kept)
        keys[:] = [keys[row] for row in kept]
        return kept

    def _substitute(self, rows: BatchRows, keys: list[str], row: int, error: SampleError) -> None:
        for attempt in range(1, SUBSTITUTES + 1):
            position = rows.positions[row]
            other = substitute(position, attempt, self.stream.samples, self.stream.streams)
            found = self._read([other], self.stream.locate(np.array([other])))
            found.positions = [position]  # whose place, and randomness, it takes
            (sample,) = found.samples
            self._transform(found)
            if not found.errors:
                self.faults.good()
                keys[row] = sample["__key__"]
                rows.datasets[row], rows.numbers[row] = found.datasets[0], found.numbers[0]
                rows.samples[row] = found.samples[0]
                rows.bytes += found.bytes
                return
            rows.bad += 1
            self.faults.bad(found.errors[0])
        raise error

    def _collate(self, rows: BatchRows, items: list[Any]) -> Any:
        if self.collate is None or not items:
            return items
        try:
            return self.collate(items)
        except Exception as error:
            where = f"positions {rows.positions[0]}..{rows.positions[-1]}"
            raise DataError(f"collate failed on {where}: {_say(error)}") from error

    def _said(
        self, position: int, which: int, shard: int, sample: int, error: Exception
    ) -> SampleError:
        dataset = self.stream.datasets[which]
        try:
            key = dataset.opened(shard).index.key(sample)
        except (DataError, OSError):  # that is the error that is told already
            key = f"number {sample}"
        return _caused(SampleError(position, key, dataset.manifest.urls[shard], _say(error)), error)


def substitute(position: int, attempt: int, samples: int, streams: int) -> int:
    """The position whose sample takes the place of a bad one: further on in the same stream, and
    most likely in the same window, then farther and farther; within the epoch, on any topology."""
    epoch, within = divmod(position, samples)
    step = streams * ((1 << attempt) - 1) % samples or attempt  # in a small epoch it may be none
    return epoch * samples + (within + step) % samples


def _caused(error: SampleError, cause: Exception) -> SampleError:
    error.__cause__ = cause
    return error


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
