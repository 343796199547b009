"""The loader: a stream of batches whose whole state is one position."""

import logging
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from data.errors import DataError
from data.keyword_options import takes_fields_of
from data.order.batch_ramp import BatchRamp
from data.order.sample_order import MAX_POSITION
from data.order.skipped_ranges import NOTHING_SKIPPED, SkippedRanges
from data.read.batch import Batch, BatchTimes
from data.read.batches.batch_fetcher import BatchFetcher, BatchWork, keep_freed_memory
from data.read.batches.batch_plan import BatchPlan, SamplePlan, Topology
from data.read.batches.grouped_prefetch import GroupedPrefetcher
from data.read.batches.inline_reads import InlineReadDecision
from data.read.batches.parallel_open import await_verification
from data.read.batches.shard_prefetch import ShardPrefetcher, check_caches, has_remote_shards
from data.read.dataset import Dataset
from data.read.dataset_growth import DatasetGrowth
from data.read.loader_metrics import LoaderMeter, Usage
from data.read.loader_options import LoaderOptions
from data.read.mixture_progress import (
    MixtureChange,
    SourceProgress,
    change_of,
    names_of,
    source_progress,
)
from data.read.sample_stream import (
    MixedStream,
    SampleStream,
    SingleStream,
    check_order_options,
    live_shards,
    mean_bytes,
    store_counts,
)
from data.read.shards.local_file_samples import WHOLE_BYTES
from data.read.shards.open_descriptors import OPEN_SHARDS

if TYPE_CHECKING:
    from data.read.processes.process_prefetch import ProcessPrefetcher

_log = logging.getLogger(__name__)

_GROUP = 256  # samples
_GROUP_BYTES = 4 << 20


class Loader(Iterable[Batch]):
    """Delivers this rank's share of each global step of `global_batch` samples, without end.

    Every sample comes exactly once per epoch over all ranks. `transform(sample, context)` and
    `collate(items)` run in `threads` reader threads (so they must be thread-safe), which work at
    most `prefetch` batches ahead; one thread makes one batch. Small batches without a transform or
    collate are made in groups of up to 256 samples; small samples that need not wait for a disk are
    read by the consumer itself, while the threads rest, if it does nothing else, see
    `InlineReadDecision`. With `workers`, processes make the batches instead. None of these, nor the
    world size, changes the order.

    Args:
        dataset: an open one, or a `SampleStream` such as `mixed` makes, which has its own
            `OrderOptions`: others are refused.
        options: given as keywords, `Loader(dataset, global_batch=256, rank=rank, ...)`: the fields
            of `LoaderOptions`, or by `from_options` as a whole.

    Raises DataError for an invalid option.
    """

    has_shared_state = True
    """Whether `state_dict` is the same on all ranks, and fits any number of them."""

    @takes_fields_of(LoaderOptions)
    def __init__(self, dataset: Dataset | SampleStream, options: LoaderOptions) -> None:
        if not isinstance(dataset, Dataset) and not hasattr(dataset, "samples"):
            raise DataError(
                f"Loader: the first argument must be what open_dataset or mixed returns, got "
                f"{type(dataset).__name__}"
            )
        stream: SampleStream = (
            SingleStream.of(dataset, options) if isinstance(dataset, Dataset) else dataset
        )
        if stream is dataset:
            check_order_options(stream, options)
        if options.epochs is not None and stream.samples == MAX_POSITION:
            raise DataError(
                f"epochs={options.epochs}: a mixture never ends, as each of its datasets has "
                "epochs of its own; leave epochs out, and end after a number of steps"
            )
        if options.tail != "straddle" and stream.samples == MAX_POSITION:
            raise DataError(
                f"tail={options.tail!r}: a mixture never ends, so no step reaches beyond its end; "
                "leave tail out"
            )
        if options.grow != "refuse" and stream.samples == MAX_POSITION:
            raise DataError(
                f"grow={options.grow!r}: the datasets of a mixture keep their shards; give new "
                "shards as a further dataset"
            )
        self._options = options
        self._faults = options.budget(options.errors)
        topology = _topology(options)
        self._given: BatchPlan = _plan_of(stream, topology, options)
        """The plan without a state: what a state continues with, whichever was loaded before."""
        self._plan: BatchPlan = self._given
        self._position = 0
        self._tokens: tuple[int, ...] = ()
        """The tokens that were delivered of each dataset, if documents of several are packed."""
        self._seen = 0
        """The samples, or sequences, of all steps before the position."""
        self._is_counted = True
        """Whether they are known: packed states of earlier releases do not count them."""
        self._ramp_before: BatchRamp | None = None
        """The ramp with which a state was saved."""
        self._began = False
        self._current: weakref.ref[_Iteration] | None = None
        self._meter = LoaderMeter()
        self.wait_s = 0.0
        """Seconds that the consumer waited for the last delivered batch."""

    @classmethod
    def from_options(cls, dataset: Dataset | SampleStream, options: LoaderOptions) -> "Loader":
        """Return a loader with these options. Raises DataError."""
        return cls(dataset, **vars(options))

    @classmethod
    def for_evaluation(
        cls,
        dataset: Dataset,
        *,
        global_batch: int,
        rank: int = 0,
        world_size: int = 1,
        **options: Any,
    ) -> "Loader":
        """Return a loader that delivers each sample once, in stored order, on any number of ranks.

        Each rank gets the same number of batches, of the same number of samples, so that
        collectives match: `mask` is False for samples that only fill up, and has to be applied to
        sums and counts. `options` are further fields of `LoaderOptions`. Raises DataError, also for
        those with which samples would be left out or come twice.
        """
        if not isinstance(dataset, Dataset):
            raise DataError(
                "for_evaluation takes one dataset, which open_dataset returns; of a mixture, "
                "evaluate each dataset on its own"
            )
        fixed = {"epochs": 1, "tail": "pad", "uneven": "pad"}
        for name, value in fixed.items():
            if options.get(name, value) != value:
                raise DataError(
                    f"for_evaluation delivers each sample once, by {name}={value!r}; got "
                    f"{name}={options[name]!r}, which `Loader` takes"
                )
        if options.get("errors") == "substitute":
            raise DataError(
                'for_evaluation: errors="substitute" delivers another sample twice; use "skip"'
            )
        fields = {"shuffle": False, **options, **fixed}
        return cls(dataset, global_batch=global_batch, rank=rank, world_size=world_size, **fields)

    def __iter__(self) -> Iterator[Batch]:
        """Continue at the first batch not yet delivered. Ends an earlier iteration of this
        loader."""
        self._end("another iteration of this loader has begun")
        self._began = True
        iteration = _Iteration(self)
        self._current = weakref.ref(iteration)
        return iteration

    def __enter__(self) -> "Loader":
        """Return the loader, which the end of a `with` block closes."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of batches of all `epochs`, from the first on: the same on every rank,
        and after a resume in the middle, see `steps_done`.

        Raises TypeError, as an object without a length, where `epochs` is None, and with `pack`,
        where the number of sequences is only known when they are planned.
        """
        return self._steps_from(0)

    def __bool__(self) -> bool:
        """Return True: that it is there does not depend on its length."""
        return True

    @property
    def steps_done(self) -> int:
        """The batches of `len` that come before the position: `tqdm(loader,
        initial=loader.steps_done)`. Raises TypeError as `len`."""
        return len(self) - self._steps_from(self._position)

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches of an epoch, the same on every rank. Where a batch may reach into
        the next epoch (`tail="straddle"`), those that have samples of the first epoch, which has
        more than later ones with a `batch_ramp`; of a dataset that has grown, those of the present
        epoch. Raises TypeError with `pack`, and for a mixture, which has no epochs."""
        stream = self._plan.stream
        if stream.samples == MAX_POSITION:
            raise TypeError("a mixture has no epochs, so it has no number of steps in one")
        if not stream.versions:
            return self._plan.steps(0, stream.samples)
        epoch = stream.epoch_of(self._position)
        return self._plan.steps(stream.epoch_begin(epoch), stream.epoch_begin(epoch + 1))

    @property
    def samples(self) -> int:
        """The number of samples of an epoch, over all ranks."""
        return self._plan.stream.samples

    @property
    def usage(self) -> Usage:
        """The time spent so far, by kind."""
        iteration = self._current() if self._current else None
        ready = iteration.ready if iteration is not None else 0
        return self._meter.usage(ready=ready, counts=self.store_counts)

    @property
    def store_counts(self) -> dict[str, float]:
        """Return the counters of all node stores that it reads from, for this process, in sum, by
        the names of `data.cache.cache_metrics.CacheMetrics`."""
        return store_counts(self._plan.stream)

    @property
    def bytes_read(self) -> int:
        """The sample bytes of all batches that this loader has delivered."""
        return self.usage.bytes

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the stream: the same on every rank; under 200 bytes as JSON for a
        dataset.

        `position` counts the samples of all ranks in the batches delivered so far, and those that
        were left out. `skipped`, if anything is left out, has the ranges of `skip`. Where the
        position does not tell the number of samples, `seen` has it; `batch_ramp` has the ramp.
        """
        skipped = self._plan.skipped
        left_out = {"skipped": skipped.to_state()} if skipped else {}
        tokens = {"tokens": list(self._tokens)} if self._tokens else {}
        is_needed = self._is_counted and self._plan.seen(self._position) is None
        seen = {"seen": self._seen} if is_needed else {}
        ramp = self._options.batch_ramp
        ramps = {} if ramp is None else {"batch_ramp": list(vars(ramp).values())}
        at = {"position": self._position, **seen}
        return {**self._plan.identity, **at, **left_out, **tokens, **ramps}

    @property
    def samples_seen(self) -> int | None:
        """The samples (with `pack`: sequences) of all steps before the position, over all ranks,
        with those that `tail="drop"` has left out; None: the state of an earlier release was
        loaded, which did not count its sequences."""
        counted = self._plan.seen(self._position)
        return counted if counted is not None else self._seen if self._is_counted else None

    @property
    def batch_ramp_change(self) -> tuple[BatchRamp | None, BatchRamp | None] | None:
        """The ramp with which the loaded state was saved, and the one with which this loader
        continues it, if they differ; None: they do not, or no state was loaded."""
        before, now = self._ramp_before, self._options.batch_ramp
        return None if before == now or not self._position else (before, now)

    @property
    def sources(self) -> tuple[SourceProgress, ...]:
        """How far each dataset of a mixture has been read by all ranks, up to the last delivered
        batch, and its weight in the next one; empty for a single dataset."""
        stream = self._plan.stream
        if not isinstance(stream, MixedStream):
            return ()
        at = self._plan.stream_position(self._position)
        left_out = self._plan.left_out if isinstance(self._plan, SamplePlan) else NOTHING_SKIPPED
        return source_progress(stream, at, left_out, self._tokens, self._plan.ended)

    @property
    def mixture_change(self) -> MixtureChange | None:
        """How `load_state_dict` has changed the weights of a mixture from the position of the state
        on; None: it has not."""
        stream = self._plan.stream
        return change_of(stream) if isinstance(stream, MixedStream) else None

    @property
    def growth(self) -> DatasetGrowth | None:
        """How the dataset has grown since the loaded state was saved; None: it has not."""
        stream = self._plan.stream
        return stream.growth if isinstance(stream, SingleStream) else None

    @property
    def has_grown(self) -> bool:
        """Whether the dataset has grown since the stream began, so that epochs differ in length."""
        return bool(self._plan.stream.versions)

    def skip(self, first: int, end: int) -> None:
        """Leave out the samples at the positions first..end - 1, which are those of `state_dict`
        before and after some batches.

        They are left out of this iteration and of what resumes from its state, on any number of
        ranks, and at other positions of all later epochs, too. All other samples come in the order
        in which they would have come. With packed documents, the sequences at these positions are
        left out, and after the last block of documents that they are of (`Packing.block`), all
        documents of which they have a part. Call it on all ranks.

        Raises DataError if iteration has begun, the range is impossible, or no sample would be
        left.
        """
        if self._began:
            raise DataError("skip was called after iteration began; call it before")
        self._plan = self._skipping(first, end)

    def skip_problem(self, first: int, end: int) -> str | None:
        """Return why `skip` could not leave out these positions, of this loader before its
        iteration began; None: it could."""
        try:
            self._skipping(first, end)
        except DataError as error:
            return str(error)
        return None

    def _skipping(self, first: int, end: int) -> BatchPlan:
        try:
            skipped = self._plan.skipped.with_range(first, end)
        except ValueError as error:
            raise DataError(str(error)) from error
        if skipped == self._plan.skipped:  # those of the state may be given again
            return self._plan
        return self._plan.skipping(skipped)

    @property
    def skipped(self) -> SkippedRanges:
        """The positions that are left out, and whose samples are left out in later epochs."""
        return self._plan.skipped

    @property
    def ended_sources(self) -> tuple[str, ...]:
        """The names of the datasets of a mixture of which no sample comes any more, as all of them
        are left out: the others are mixed by their weights without it."""
        stream = self._plan.stream
        if not isinstance(stream, MixedStream):
            return ()
        names = names_of(stream)
        return tuple(names[number] for number in self._plan.ended)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was saved; the world size and batch size may differ. What was left
        out by `skip` before is replaced by what `state` leaves out.

        Raises FingerprintError if it belongs to another stream, DataError if it is not a state of a
        loader or iteration has begun.
        """
        if self._began:
            raise DataError("load_state_dict was called after iteration began; call it before")
        if not isinstance(state, Mapping):
            raise DataError(f"not a loader's state: {state!r}")
        saved = dict(state)
        position = saved.pop("position", None)
        if saved.get("within"):
            raise DataError(
                "the state was saved by a StreamingDataset inside a step: only a StreamingDataset "
                "can resume it"
            )
        saved.pop("until", None)  # a StreamingDataset at the end of a pass
        if type(position) is not int or not 0 <= position < MAX_POSITION:
            raise DataError(f"not a loader's state: position is {position!r}")
        try:
            skipped = SkippedRanges.of_state(saved.pop("skipped", []))
        except ValueError as error:
            raise DataError(f"not a loader's state: {error}") from error
        tokens = saved.pop("tokens", [])
        if not isinstance(tokens, list) or any(type(each) is not int for each in tokens):
            raise DataError(f"not a loader's state: tokens is {tokens!r}")
        seen, before = saved.pop("seen", None), _ramp_of(saved.pop("batch_ramp", None))
        if seen is not None and (type(seen) is not int or seen < 0):
            raise DataError(f"not a loader's state: seen is {seen!r}")
        plan = self._given.resumed(saved, position).skipping(skipped)
        if skipped and seen is None and plan.seen(position) is None:
            _log.warning(
                "the state is of a run that an earlier release began, which left out sequences of "
                "packed documents once: they are left out of later epochs from here on, and if the "
                "state is in a later epoch than they are, sequences of its block of documents may "
                "be repeated or lost"
            )
        if plan.stream.versions and self._options.tail != "straddle":
            raise DataError(
                f"the dataset has grown, which tail={self._options.tail!r} cannot follow"
            )
        if (counted := plan.seen(position)) is not None:
            seen = counted
        elif seen is None and self._options.batch_ramp is not None:
            raise DataError(
                "batch_ramp: the state was saved by an earlier release, which did not count the "
                "sequences before it; continue without a ramp"
            )
        self._plan, self._position, self._tokens = plan, position, tuple(tokens)
        self._seen, self._is_counted, self._ramp_before = seen or 0, seen is not None, before

    def close(self) -> None:
        """Stop the reader threads or processes and wait for them. A new iteration continues at the
        same place."""
        self._end("the loader was closed")

    def _steps_from(self, position: int) -> int:
        end = self._plan.topology.end(self._plan.stream)
        if end is None:
            raise TypeError("a loader without epochs does not end, so it has no length")
        return self._plan.steps(position, end)

    def _end(self, reason: str) -> None:
        iteration = self._current() if self._current else None
        if iteration is not None:
            iteration.close(reason)
        self._current = None


class PreparedBatch(NamedTuple):
    """A batch that is made and not yet delivered."""

    batch: Batch
    times: BatchTimes
    after: int
    """The position after it is delivered."""
    wait_s: float


class _Iteration(Iterator[Batch]):
    """One pass over a loader. The loader refers to it weakly, so dropping it ends its threads."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._meter = loader._meter
        keep_freed_memory()
        self._prefetcher = self._start_batches(loader)
        self._shard_prefetcher = self._start_shard_prefetch(loader)
        for dataset in loader._plan.stream.datasets:
            dataset.manifest.release()
        self._last_s = time.perf_counter()

    @property
    def ready(self) -> int:
        return self._prefetcher.ready

    def close(self, reason: str) -> None:
        self._prefetcher.close(reason)
        if self._shard_prefetcher is not None:
            self._shard_prefetcher.close()

    def __next__(self) -> Batch:
        return self.deliver(self.take())

    def take(self) -> PreparedBatch:
        """Wait for the next batch without counting it as delivered, so that a caller such as
        `to_device` can work ahead of the consumer."""
        began_s = time.perf_counter()
        try:
            batch, times, after = self._prefetcher.next()
        except StopIteration:
            await_verification(self._loader._plan.stream)
            raise
        return PreparedBatch(batch, times, after, time.perf_counter() - began_s)

    def deliver(self, taken: PreparedBatch) -> Batch:
        """Deliver the first batch that was taken and not delivered yet: the position moves.

        Once this iteration has ended, this has no other effect.
        """
        batch, times, after, wait_s = taken
        now_s = time.perf_counter()
        loader = self._loader
        loader._position, loader._seen = after, batch.seen + batch.step_samples
        if batch.step_tokens:
            loader._tokens = _summed(loader._tokens, batch.step_tokens)
        loader.wait_s = wait_s
        self._meter.delivered(batch, times, wait_s=wait_s, elapsed_s=now_s - self._last_s)
        self._last_s = now_s
        return batch

    @staticmethod
    def _start_batches(loader: Loader) -> "_Batches":
        """Return the prefetcher that makes the batches. It must not refer to the iteration."""
        plan = loader._plan
        OPEN_SHARDS.check_live(live_shards(plan.stream, plan.streams))
        options = loader._options
        made = BatchFetcher(plan.stream, options.transform, options.collate, loader._faults)
        fetcher, work = plan.fetcher(made), plan.work(loader._position, loader._seen)
        if options.workers:
            from data.read.processes.process_prefetch import ProcessPrefetcher

            return ProcessPrefetcher(
                fetcher,
                work,
                workers=options.workers,
                depth=options.prefetch,
                start=options.start_method,
            )
        most, inline = _grouping(loader)
        return GroupedPrefetcher(
            lambda work: (*fetcher.fetch(work), work.share.after),
            work,
            most=most,
            depth=options.prefetch,
            threads=options.threads,
            inline=inline,
        )

    @staticmethod
    def _start_shard_prefetch(loader: Loader) -> ShardPrefetcher | None:
        plan = loader._plan
        if not has_remote_shards(plan.stream):
            return None
        of = weakref.ref(loader)
        last = loader._position

        def reading() -> int:
            it = of()
            return plan.stream_position(last if it is None else it._position)

        of_rank, end = plan.streams, plan.topology.end(plan.stream)
        check_caches(plan.stream, of_rank)
        downloads = loader._options.downloads
        return ShardPrefetcher(plan.stream, reading, of_rank, end=end, downloads=downloads)


def _summed(before: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(before, more, fillvalue=0)))


def _topology(options: LoaderOptions) -> Topology:
    return Topology(
        options.global_batch,
        options.rank,
        options.world_size,
        options.uneven,
        options.tail,
        options.epochs,
        options.batch_ramp,
    )


def _plan_of(stream: SampleStream, topology: Topology, options: LoaderOptions) -> BatchPlan:
    if options.pack is None:
        return SamplePlan(stream, topology)
    from data.read.sequences.packed_batches import Packing, PackPlan

    if not isinstance(options.pack, Packing):
        raise DataError(f"pack must be a data.Packing or None, got {options.pack!r:.100}")
    return PackPlan.of(stream, topology, options.pack)


def _ramp_of(saved: object) -> BatchRamp | None:
    """Return the ramp of a state. Raises DataError."""
    if saved is None:
        return None
    if not isinstance(saved, list) or len(saved) != 4 or any(type(n) is not int for n in saved):
        raise DataError(f"not a loader's state: batch_ramp is {saved!r}")
    try:
        return BatchRamp(*saved)
    except ValueError as error:
        raise DataError(f"not a loader's state: {error}") from error


def _grouping(loader: Loader) -> tuple[int, InlineReadDecision | None]:
    """Return how many batches one thread makes before it passes them on, and the decision whether
    the consumer itself reads.

    These are more than 1 and not None only if batches are small, there is no transform or collate
    of the user's, and no shard is remote, so that no read waits for one.
    """
    plan, options = loader._plan, loader._options
    own = options.transform or options.collate or options.pack
    if own or options.threads == 0 or has_remote_shards(plan.stream):
        return 1, None
    rows, mean = -(-plan.topology.batch // plan.topology.world), mean_bytes(plan.stream)
    most = max(1, min(_GROUP // rows, int(_GROUP_BYTES // (rows * mean))))
    return most, InlineReadDecision() if mean <= WHOLE_BYTES else None


_Batches: TypeAlias = (
    "GroupedPrefetcher[BatchWork, tuple[Batch, BatchTimes, int]] | ProcessPrefetcher"
)
