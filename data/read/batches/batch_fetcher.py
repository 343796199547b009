"""Making one batch: samples are read by their positions, transformed and collated. Runs in reader
threads."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from data.cache.node_store import NodeStore
from data.errors import DataError, SampleError
from data.order.keyed_permutation import Ints
from data.order.rank_shares import Bools, RankShare
from data.read.bad_samples import SUBSTITUTES, BadSampleBudget
from data.read.batch import Batch, BatchTimes, SampleContext
from data.read.batches.parallel_open import open_in_parallel, parallel_reads
from data.read.sample_stream import SampleLocations, SampleStream
from data.read.shards.local_file_samples import Sample
from data.read.shards.piece_reads import (
    Contents,
    Make,
    Piece,
    SampleReader,
    failing_reader,
    read_pieces,
)
from data.read.shards.shard_samples import ShardSamples
from data.read.shards.single_members import OpenFile, OpenFiles, read_single_members

_FREED_BYTES = 31 << 20

Transform: TypeAlias = Callable[[Sample, SampleContext], Any]


class BatchWork(NamedTuple):
    """The work for one batch: this rank's share of a global step, and where its samples are."""

    share: RankShare
    places: SampleLocations
    extra: Any = None
    """Further input of a fetcher that makes other than plain batches."""
    seen: int = 0
    """The samples, or sequences, of all global steps before this one."""
    step_samples: int = 0
    """The samples, or sequences, of this global step over all ranks."""


@dataclass
class BatchRows:
    """The samples of a batch, as lists of equal length."""

    positions: list[int]
    datasets: list[int]
    numbers: list[int]
    samples: list[Any]
    errors: dict[int, SampleError]
    """The errors of samples that could not be read or transformed, by their row."""
    bytes: int = 0
    bad: int = 0
    """The number of errors."""

    def keep(self, kept: list[int]) -> None:
        for name in ("positions", "datasets", "numbers", "samples"):
            column = getattr(self, name)
            setattr(self, name, [column[number] for number in kept])


@dataclass(frozen=True)
class BatchFetcher:
    """Makes this rank's batch of any global step. It holds no position, so threads may share it."""

    stream: SampleStream
    transform: Transform | None
    collate: Callable[[list[Any]], Any] | None
    faults: BadSampleBudget

    def fetch(self, work: BatchWork) -> tuple[Batch, BatchTimes]:
        """Make the batch of one share.

        Raises SampleError for a sample that the policy does not accept, DataError for a collate
        that fails.
        """
        begun_s = time.perf_counter()
        share = work.share
        rows = self._read(share.positions.tolist(), work.places)
        keys = [sample and sample["__key__"] for sample in rows.samples]
        read_s = time.perf_counter() - begun_s
        self._transform(rows)
        self._check(rows, work)
        kept = self._handle_errors(rows, keys)
        batch = Batch(
            data=self._collate(rows, self._items(rows, work, kept)),
            keys=tuple(keys),
            indices=tuple(rows.numbers),
            datasets=tuple(rows.datasets),
            positions=tuple(rows.positions),
            mask=self._mask(work, kept),
            weight=share.weight,
            epoch=self.stream.epoch_of(min(rows.positions, default=0)),
            errors=rows.bad,
            bytes=rows.bytes,
            step_tokens=self._step_tokens(work),
            seen=work.seen,
            step_samples=work.step_samples,
        )
        return batch, BatchTimes(read_s, time.perf_counter() - begun_s - read_s)

    def _check(self, rows: BatchRows, work: BatchWork) -> None:
        """Check that the transform returned what was asked for (nothing to check for plain
        batches)."""

    def _items(self, rows: BatchRows, work: BatchWork, kept: list[int] | None) -> list[Any]:
        """Return the items to collate; `kept` is as returned by `_handle_errors`."""
        return rows.samples

    def _step_tokens(self, work: BatchWork) -> tuple[int, ...]:
        return ()

    def _mask(self, work: BatchWork, kept: list[int] | None) -> Bools:
        return work.share.mask if kept is None else work.share.mask[kept]

    def _read(self, positions: list[int], places: SampleLocations) -> BatchRows:
        """Read the samples. All pieces are read before the first sample is made of them: see
        `piece_reads` and `single_members`."""
        starts, first = self._starts
        shards = places.shards if len(first) == 1 else first[places.datasets] + places.shards
        numbers: list[int] = (starts[shards] + places.samples).tolist()
        datasets, samples = places.datasets.tolist(), places.samples.tolist()
        rows = BatchRows(positions, datasets, numbers, [], {})
        lies: list[int] = shards.tolist()
        files = self._files(lies, places)
        if files is not None:
            rows.samples, rows.bytes, bad = read_single_members(files, samples)
            if bad:
                own = places.shards.tolist()
                makes = [self._reader(datasets[row], own[row]).make for row in bad]
                self._make(rows, bad, makes, places, iter(()))
            return rows
        readers = self._readers(_distinct(lies, places))
        rows.samples = [None] * len(samples)
        asked = [readers[lie] for lie in lies]
        asks = any(reader.ask is not None for reader in readers.values())
        contents = self._contents(asked, samples) if asks else iter(())
        with parallel_reads(asked, samples, readers.values()) as makes:
            self._make(rows, range(len(samples)), makes, places, contents)
        return rows

    def _make(
        self,
        rows: BatchRows,
        which: Sequence[int],
        makes: Sequence[Make],
        places: SampleLocations,
        contents: Contents,
    ) -> None:
        """Make the samples of the rows `which`, each by its function, from `contents`."""
        numbers, made, total = places.samples.tolist(), rows.samples, 0
        for row, make in zip(which, makes, strict=True):
            sample = numbers[row]
            try:
                made[row], size = make(sample, contents)
                total += size
            except (DataError, OSError) as error:
                place = (int(places.datasets[row]), int(places.shards[row]))
                position = rows.positions[row]
                rows.errors[row] = self._sample_error(position, *place, sample, error)
        rows.bytes += total

    def _files(self, lies: list[int], places: SampleLocations) -> list[OpenFile] | None:
        """Return the file of each sample, if all of these shards are open, and their samples can be
        read together. Each shard has a number of its own."""
        opened, stores, known = self._opened
        for store in stores:
            store.check()
        files = known.files
        try:
            return [files[lie] for lie in lies]
        except KeyError:
            pass
        for lie, (which, number) in _distinct(lies, places).items():
            shard = opened[which].get(number)
            if shard is None or (file := shard.single_member_file) is None:
                return None
            shard.used = True
            files[lie] = (*file,)
        return [files[lie] for lie in lies]

    def _readers(self, wanted: Mapping[int, tuple[int, int]]) -> dict[int, SampleReader]:
        """Return the reader of each of these shards, given as (dataset, shard)."""
        open_in_parallel(self.stream, wanted.values())
        return {lie: self._reader(*place) for lie, place in wanted.items()}

    @staticmethod
    def _contents(readers: list[SampleReader], samples: list[int]) -> Contents:
        """Read all that the readers need for these samples."""
        pieces: list[Piece] = []
        for reader, sample in zip(readers, samples, strict=True):
            if (ask := reader.ask) is not None:
                ask(sample, pieces)
        return read_pieces(pieces)

    def _reader(self, which: int, shard: int) -> SampleReader:
        try:
            return self.stream.datasets[which].opened(shard).reader
        except (DataError, OSError) as error:  # the error is reported for each of its samples
            return failing_reader(error)

    @cached_property
    def _opened(self) -> tuple[list[Mapping[int, ShardSamples]], list[NodeStore], OpenFiles]:
        """The open shards of each dataset, the stores whose reads have to be checked, and the files
        that are known."""
        datasets = self.stream.datasets
        stores = {each.store for each in datasets if each.store.verifies_later}
        return [each.open_shards for each in datasets], list(stores), OpenFiles()

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone for another process, which opens shards by itself."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def _starts(self) -> tuple[Ints, Ints]:
        """The number of each shard's first sample in its dataset, of all datasets, and where each
        dataset begins there."""
        datasets = self.stream.datasets
        if len(datasets) == 1:
            return datasets[0].starts, np.zeros(1, np.int64)
        first = np.cumsum([0, *(each.starts.size for each in datasets)])[:-1]
        return np.concatenate([each.starts for each in datasets]), first

    def _transform(self, rows: BatchRows) -> None:
        if self.transform is not None:
            self._apply(rows, [self.transform] * len(rows.samples))

    def _apply(self, rows: BatchRows, transforms: Sequence[Transform]) -> None:
        """Transform each row by its own transform."""
        each = zip(rows.samples, rows.positions, transforms, strict=True)
        for row, (sample, position, transform) in enumerate(each):
            if row in rows.errors:
                continue
            context = SampleContext(position, self.stream.epoch_of(position), self.stream.seed)
            try:
                rows.samples[row] = transform(sample, context)
            except Exception as error:  # noqa: BLE001 (whatever the user's code raises)
                failure = SampleError(
                    position, sample["__key__"], sample["__url__"], _describe(error)
                )
                rows.errors[row] = _with_cause(failure, error)

    def _handle_errors(self, rows: BatchRows, keys: list[str]) -> list[int] | None:
        """Replace bad samples by others, or leave them out: then return the rows that are kept,
        else None. Raises an error that the policy does not accept."""
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
            other = self._other(position, attempt)
            found = self._read([other], self.stream.locate(np.array([other])))
            found.positions = [position]  # it takes this sample's place and randomness
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

    def _other(self, position: int, attempt: int) -> int:
        """Return the position whose sample replaces a bad one, in the same epoch."""
        stream = self.stream
        epoch = stream.epoch_of(position)
        begin, end = stream.epoch_begin(epoch), stream.epoch_begin(epoch + 1)
        return begin + substitute(position - begin, attempt, end - begin, stream.streams)

    def _collate(self, rows: BatchRows, items: list[Any]) -> Any:
        if self.collate is None or not items:
            return items
        try:
            return self.collate(items)
        except Exception as error:
            where = f"positions {rows.positions[0]}..{rows.positions[-1]}"
            raise DataError(f"collate failed on {where}: {_describe(error)}") from error

    def _sample_error(
        self, position: int, which: int, shard: int, sample: int, error: Exception
    ) -> SampleError:
        dataset = self.stream.datasets[which]
        try:
            key = dataset.opened(shard).index.key(sample)
        except (DataError, OSError):  # the caller reports that error already
            key = f"number {sample}"
        return _with_cause(
            SampleError(position, key, dataset.manifest.urls[shard], _describe(error)), error
        )


def _distinct(lies: list[int], places: SampleLocations) -> dict[int, tuple[int, int]]:
    """Return the (dataset, shard) of each of these shards."""
    each = zip(places.datasets.tolist(), places.shards.tolist(), strict=True)
    return dict(zip(lies, each, strict=True))


def substitute(position: int, attempt: int, samples: int, streams: int) -> int:
    """Return the position whose sample replaces a bad one.

    It is further on in the same stream and epoch, most likely in the same window, and farther away
    with each attempt; it is the same on any topology.
    """
    epoch, within = divmod(position, samples)
    step = streams * ((1 << attempt) - 1) % samples or attempt  # in a small epoch the step may be 0
    return epoch * samples + (within + step) % samples


def _with_cause(error: SampleError, cause: Exception) -> SampleError:
    error.__cause__ = cause
    return error


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def keep_freed_memory() -> None:
    """Let the C library keep freed memory, up to twice 31 MiB in each of its heaps.

    By default glibc allocates each block of 128 KiB and more from the kernel and returns it as soon
    as it is freed; each page is then faulted in and cleared again for the next sample, which takes
    longer than copying it from the page cache. Freeing one larger block, which costs nothing as
    long as it is not written to, raises both limits (mallopt(3), "dynamic mmap threshold"), as in
    any program that frees a large array. Other C libraries are not affected.
    """
    bytes(_FREED_BYTES)
