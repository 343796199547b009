"""The pipeline as users see it: webdataset's fluent interface over the source of `data`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from multiprocessing import context
from typing import Any

from webdataset.compat import FluidInterface
from webdataset.pytorch import IterableDataset

from data.errors import DataError
from data.index.shard_listing import Shards
from data.keyword_options import takes_fields_of
from data.order.sample_order import MAX_POSITION
from data.read.dataset import Dataset
from data.read.loader_metrics import Usage
from data.read.sample_stream import SampleStream
from data.wds import pipeline_cursor, ranks_and_workers
from data.wds.pass_registry import PassRegistry
from data.wds.pipeline import WdsPipeline
from data.wds.pipeline_cursor import Cursor, PipelineState
from data.wds.pipeline_settings import PipelineSettings
from data.wds.pipeline_source import PipelineInput, ShardMixture
from data.wds.ranks_and_workers import LoaderWorker
from data.wds.stages.stage_kinds import Stage
from data.wds.stages.stage_runner import EMPTY
from data.wds.streaming_options import StreamingOptions


class StreamingDataset(IterableDataset, FluidInterface):  # type: ignore[misc]
    """A dataset for `DataLoader`, with webdataset's stages, whose state is one position.

        dataset = StreamingDataset("shards").decode("torchrgb").to_tuple("jpg", "cls").batched(32)
        loader = WebLoader(dataset, num_workers=4)

    How each stage is run is described in docs/tasks/webdataset.md. Each method returns a new
    dataset. Iterating makes one pass, and the next iteration the next pass; within a pass, each
    sample comes once over all ranks. The order is that of a `Loader` with the same seed, streams
    and window.

    Args:
        shards: as of `open_dataset`; or an open `Dataset`, or a `SampleStream` such as `mixed`
            makes, which cannot be sent to workers that are spawned.
        options: given as keywords, `StreamingDataset(shards, seed=1, ...)`: the fields of
            `StreamingOptions`, or by `from_options` as a whole.

    Raises DataError for an invalid option.
    """

    has_shared_state = True
    """Whether `state_dict` is the same on all ranks, and fits any number of them."""

    @takes_fields_of(StreamingOptions)
    def __init__(self, shards: Shards | Dataset | SampleStream, options: StreamingOptions) -> None:
        super().__init__()
        settings = PipelineSettings(PipelineInput(shards, options), options)
        self._start(settings, Cursor(0), None)

    @classmethod
    def from_options(
        cls, shards: Shards | Dataset | SampleStream, options: StreamingOptions
    ) -> "StreamingDataset":
        """Return a dataset with these options. Raises DataError."""
        return cls(shards, **vars(options))

    @classmethod
    def of_mixture(
        cls,
        mixture: ShardMixture,
        options: StreamingOptions,
        stages: tuple[tuple[Stage, ...], ...],
    ) -> "StreamingDataset":
        """Return a dataset of a mixture, whose datasets have `stages` of their own. Raises
        DataError."""
        found = cls.from_options([], options)
        settings = PipelineSettings(
            PipelineInput(mixture, options), options, epochs=None, of_datasets=stages
        )
        found._start(settings, Cursor(0), None)
        return found

    def _start(
        self,
        settings: PipelineSettings,
        at: Cursor,
        saved: PipelineState | None,
        like: WdsPipeline | None = None,
    ) -> None:
        self.pipeline = WdsPipeline(settings, saved, like)
        self._cursor, self._saved_state = at, saved
        self._main_cursor: Cursor | None = None
        self._passes = PassRegistry()
        self._iteration = 0

    length: int | None = None
    """The length that `with_length` was given."""

    def __len__(self) -> int:
        """Return the items of a pass on this rank: those of `with_length`, else as many as the
        stages give if all samples can be used. It opens the shards.

        Raises TypeError, as an object without a length, where a pass does not end, where only the
        stages know their items, and where the items are single samples: torch's
        DataLoader(batch_size=n) would count too few batches, as each of its workers ends a pass
        with a smaller one, and a trainer that stops at the length would leave out samples.
        """
        if self.length is None and self.pipeline.settings.plan.batching is None:
            raise TypeError(
                "the items are single samples, of which torch's DataLoader would count too few "
                "batches: use batched(n), WebLoader or with_length(n)"
            )
        return self.pass_items()

    def pass_items(self) -> int:
        """Return the items of a pass on this rank as `len` does, and for single samples, too.
        Raises TypeError."""
        if self.length is not None:
            return self.length
        begin, end = self._bounds()
        return self.pipeline.items_between(begin, end)

    def __bool__(self) -> bool:
        """Return True: that it is there does not depend on its length."""
        return True

    @property
    def steps_done(self) -> int:
        """The items of the present pass, on this rank, that are already delivered. Raises TypeError
        as `len`."""
        return self.items_done(self._cursor)

    def items_done(self, at: Cursor) -> int:
        """Return how many items of a pass come before a cursor. Raises TypeError as `len`."""
        begin, end = self._bounds(at)
        total = self.pipeline.items_between(begin, end)
        position = self.pipeline.steps.advance(at.position, at.skip)
        return total - self.pipeline.items_between(position, end) + at.within

    def _bounds(self, at: Cursor | None = None) -> tuple[int, int]:
        """Return where the pass of a cursor begins and ends. Raises TypeError."""
        settings = self.pipeline.settings
        if not settings.options.exact:
            raise TypeError("only the stages know how many items they give: use with_length(n)")
        if settings.plan.filters and settings.plan.batching is None:
            raise TypeError(
                "samples are left out, so their number is not known: use with_length(n)"
            )
        is_mixed = self.pipeline.open().samples == MAX_POSITION
        if is_mixed and settings.items is None:
            raise TypeError("a mixture does not end, so it has no length: use with_epoch(n)")
        found = self.pipeline.pass_from(self._cursor if at is None else at)
        begin = self.pipeline.steps.begin_of_pass(found.position)
        if found.until is None or begin is None:
            raise TypeError("a pass does not end, so it has no length: use with_epoch(n)")
        if found.position >= found.until:  # at the end of a pass
            begin = self.pipeline.steps.begin_of_ended(found.position)
            assert begin is not None
        return begin, found.until

    # the stages

    def compose(self, *stages: Stage) -> "StreamingDataset":
        """Return a copy with more stages. Raises DataError for a stage that cannot be used
        there."""
        return self._with(stages=(*self.pipeline.settings.stages, *stages))

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> "StreamingDataset":
        """Return a copy with passes of so many items, as the pipeline delivers them, on each
        rank. With `global_batch` and without `batched`, a step of `global_batch` samples over all
        ranks counts as one item here."""
        return self._with(items=max(nsamples, nbatches), epochs=None)

    def repeat(self, nepochs: int = -1, nbatches: int = -1) -> "StreamingDataset":
        """Return a copy with passes of so many epochs, or items on each rank; endless if neither is
        given."""
        if nepochs > 0:
            return self._with(epochs=nepochs, items=nbatches if nbatches > 0 else None)
        return self._with(epochs=None, items=nbatches if nbatches > 0 else None)

    def with_epochs(self, epochs: Fraction) -> "StreamingDataset":
        """Return a copy with passes of so many epochs, also parts of one; each pass begins where
        the last one ended."""
        if epochs.denominator == 1:
            return self.repeat(int(epochs))
        return self._with(epochs=epochs, items=None)

    def with_length(self, n: int, silent: bool = True) -> "StreamingDataset":
        """Return a copy that reports the length n, for trainers that ask; nothing else changes."""
        found = self._with()
        found.length = n
        return found

    def _with(self, **changes: Any) -> "StreamingDataset":
        found: StreamingDataset = object.__new__(type(self))
        found.__dict__.update(self.__dict__)
        settings = replace(self.pipeline.settings, **changes)
        found._start(settings, self._cursor, self._saved_state, self.pipeline)
        return found

    # the state

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the stream after what was delivered: the same on all ranks, JSON
        values.

        In a worker of a `DataLoader` it is that of the worker, for a StatefulDataLoader.
        """
        worker = ranks_and_workers.worker()
        of = None if worker is None else (worker.id, worker.workers)
        return self.pipeline.state(self._cursor, of)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was saved by this class, a `Loader`, a `WebLoader`, or a
        StatefulDataLoader with any number of workers; ranks and batches may differ.

        Raises FingerprintError if it belongs to another stream, DataError if it is not a state or
        iteration has begun. Where opening the shards takes requests, errors in the state are raised
        when iteration begins.
        """
        if self._iteration:
            raise DataError("load_state_dict was called after iteration began; call it before")
        saved, worker = pipeline_cursor.read(state), ranks_and_workers.worker()
        if saved.worker is not None and saved.worker != (worker and (worker.id, worker.workers)):
            number, count = saved.worker
            raise DataError(
                f"this is the state of only worker {number} of {count}: load the state of the "
                "loader"
            )
        passes, settings = self._passes, self.pipeline.settings
        self._start(settings, saved.cursor, saved, self.pipeline)
        if worker is not None:  # this is a copy that shares the registry with others
            self._passes = passes
        if not settings.origin.is_remote:
            self.pipeline.open()

    # iterating

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass from here on. Ends an earlier iteration of this dataset in this process."""
        worker = ranks_and_workers.worker()
        if worker is None:
            return self._in_main()
        self._cursor = self._begin_in(worker)
        return self._in_worker(worker, self._cursor)

    @property
    def samples(self) -> int:
        """The number of samples of an epoch."""
        return self.pipeline.open().samples

    @property
    def errors(self) -> int:
        """Samples that were left out or replaced, in this process."""
        return self.pipeline.errors

    @property
    def usage(self) -> Usage:
        """The time spent so far, by kind, in this process, as of a `Loader`: stages run while the
        consumer waits, so `transform_s` is their time. Workers of a `DataLoader` report to
        `WebLoader`."""
        return self.pipeline.usage

    @property
    def cursor(self) -> Cursor:
        """The cursor at which the next pass begins."""
        return self._cursor

    def _in_main(self) -> Iterator[Any]:
        self._iteration += 1
        iteration, at = self._iteration, self.pipeline.pass_from(self._cursor)
        self._cursor = at
        for made in self.pipeline.made(at):
            self._check_iteration(iteration)
            self._cursor = made.cursor._replace(until=at.until)
            if made.item is EMPTY:
                self.pipeline.check_empty(made)
            else:
                yield made.item
        self._check_iteration(iteration)
        self._cursor = Cursor(self._cursor.position if at.until is None else at.until)

    def _begin_in(self, worker: LoaderWorker) -> Cursor:
        saved, pipeline = self._saved_state, self.pipeline
        if saved is not None and saved.worker is not None and self._iteration == 0:
            self._iteration += 1
            at = saved.cursor
            until = pipeline.steps.until(at.position) if at.until is None else at.until
            both = (at.position, at.position if until is None else until)
            self._passes.begin(worker, both, lambda _: both[1])
            return at._replace(until=until)
        # the cursor of the process that started this worker
        self._main_cursor = self._main_cursor or self._cursor
        first, steps = pipeline.pass_from(self._main_cursor), pipeline.steps
        endless = first.until is None
        begin, end = self._passes.begin(
            worker,
            (first.position, first.position if first.until is None else first.until),
            lambda begin: begin if endless else steps.until(begin) or begin,
        )
        within = first.within if begin == first.position and worker.id == 0 else 0
        return Cursor(begin, worker.id, within, None if endless else end)

    def _in_worker(self, worker: LoaderWorker, at: Cursor) -> Iterator[Any]:
        self._iteration += 1
        iteration = self._iteration
        for made in self.pipeline.made(at, 0, worker.workers):
            self._check_iteration(iteration)
            skip = 0 if made.cursor.within else worker.workers - 1
            self._cursor = made.cursor._replace(skip=skip, until=at.until)
            if made.item is not EMPTY:
                yield made.item
                continue
            self.pipeline.check_empty(made)
            is_last = at.until is not None and made.cursor.position >= at.until
            if made.for_all_ranks and is_last:
                continue
            if worker.workers > 1 and self.pipeline.settings.options.exact:
                raise DataError(
                    f"nothing is left of the step before position {made.cursor.position}, and a "
                    "DataLoader with several workers would change the order: use data.wds.WebLoader"
                )

    def _check_iteration(self, iteration: int) -> None:
        if self._iteration != iteration:
            raise DataError("another iteration of this dataset has begun")

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if context.get_spawning_popen() is None:  # otherwise memory cannot be shared
            del state["_passes"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_passes" not in state:
            self._passes = PassRegistry()
