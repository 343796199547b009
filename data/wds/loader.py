"""A `DataLoader` over a pipeline, whose state is that of the pipeline."""

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from webdataset.compat import FluidInterface
from webdataset.pytorch import DataLoader, IterableDataset

from data.errors import DataError, PipelineError
from data.read.loader_metrics import Usage
from data.wds import ranks_and_workers
from data.wds.dataset import StreamingDataset
from data.wds.pipeline_cursor import Cursor
from data.wds.stages.sample_seeds import Seeder
from data.wds.stages.stage_chain import DROPPED, HandledError, StageChain, StoppedError
from data.wds.stages.stage_kinds import Stage, StageKind, describe_stage, kind_of, may_draw
from data.wds.stages.stage_plan import is_rsample, note
from data.wds.stages.stage_runner import EMPTY, PipelineItem

_PURPOSES = 1 << 48
"""The purpose of seeds from which on the stages of a loader have theirs."""

_NOT_HERE = ("shuffle", "sampler", "batch_sampler")
"""Options of `DataLoader` by which it would choose the samples itself."""


class WebLoader(FluidInterface):  # type: ignore[misc]
    """Delivers the items of `dataset`, made in `num_workers` processes, in the exact order.

    Worker w of W makes every W-th step and the steps are delivered in turn, so any number of
    workers gives the same sequence. The cursor of the dataset comes with each item and counts when
    the item is delivered: the state does not depend on what was read ahead, and can be resumed with
    any number of workers, ranks and samples in a batch.

    It has the methods of webdataset's `WebLoader`, each of which returns a new loader. Those that
    batch, split or slice are added to the dataset, so that they count samples in the exact order;
    those that map or select items run in this process, as webdataset runs them.

    Args:
        batch_size: adds `batched(batch_size)` to the dataset, with `collate_fn`, by default that of
            `DataLoader`; `drop_last` leaves out a smaller last batch. None: the items are those of
            the dataset.
        options: of `DataLoader`: collate_fn, prefetch_factor, pin_memory, timeout, worker_init_fn,
            multiprocessing_context and so on. `persistent_workers` has no effect: workers are
            started for each pass, see `with_epoch` for longer passes.

    Raises PipelineError for an option that is not supported.
    """

    has_shared_state = True
    """Whether `state_dict` is the same on all ranks, and fits any number of them."""

    def __init__(
        self,
        dataset: StreamingDataset,
        batch_size: int | None = None,
        *,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        given = sorted(name for name in _NOT_HERE if options.pop(name, None))
        if given:
            raise PipelineError(
                f"{', '.join(given)} is not supported here: the dataset is already in its order"
            )
        if not isinstance(dataset, StreamingDataset):
            raise PipelineError(
                f"expected a StreamingDataset or from_wds(...), got {type(dataset)}"
            )
        if options.pop("persistent_workers", False):
            note(
                "persistent_workers=True has no effect here: workers are started for each pass; use"
                " with_epoch() for longer passes"
            )
        drop_last = options.pop("drop_last", False)
        if batch_size is not None:
            collate = options.pop("collate_fn", None) or _torch_collate()
            dataset = dataset.batched(batch_size, collation_fn=collate, partial=not drop_last)
            options["collate_fn"] = _same
        elif drop_last:
            raise PipelineError("drop_last=True needs batch_size; or use batched(n, partial=False)")
        self.dataset, self.num_workers = dataset, num_workers
        self._options = options
        self._stages: tuple[Stage, ...] = ()
        self._state: dict[str, Any] | None = None
        self._cursor: Cursor | None = None
        self._usages: dict[tuple[int, int], Usage] = {}
        self._wait_s = self._elapsed_s = 0.0
        self._iteration = 0

    # the stages

    def compose(self, *stages: Stage) -> "WebLoader":
        """Return a loader with more stages. Raises PipelineError for a stage that cannot be used
        there."""
        found, exact = self._with(self.dataset), self.dataset.pipeline.settings.options.exact
        for stage in stages:
            kind = kind_of(stage)
            is_random = exact and is_rsample(stage)  # by position, which the dataset knows
            if kind in (StageKind.EACH, StageKind.FILTER) and not is_random:
                StageChain([stage])  # raises if a handler is not allowed
                found._stages = (*found._stages, stage)
            elif found._stages:
                raise PipelineError(
                    f"{describe_stage(stage)} after {describe_stage(found._stages[-1])} of a "
                    "WebLoader would count items that have no position: put it before, or use both "
                    "on the dataset"
                )
            else:
                if kind in (StageKind.BATCH, StageKind.SPLIT):
                    found._collate_before()
                found.dataset = found.dataset.compose(stage)
        return found

    def _collate_before(self) -> None:
        """Apply `collate_fn` to the items before stages that are added to the dataset."""
        collate = self._options.get("collate_fn") or _default_collate()
        if collate is not _same:
            self.dataset = self.dataset.map(collate)
            self._options = {**self._options, "collate_fn": _same}

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> "WebLoader":
        """Return a loader with passes of so many items on each rank."""
        return self._with(self.dataset.with_epoch(nsamples, nbatches))

    def repeat(self, nepochs: int = -1, nbatches: int = -1) -> "WebLoader":
        """Return a loader with passes of so many epochs, or items on each rank; endless if neither
        is given."""
        return self._with(self.dataset.repeat(nepochs, nbatches))

    def with_length(self, n: int, silent: bool = True) -> "WebLoader":
        """Return a loader that reports the length n; nothing else changes."""
        return self._with(self.dataset.with_length(n, silent))

    def _with(self, dataset: StreamingDataset) -> "WebLoader":
        if self._iteration:
            raise PipelineError("stages are added to a loader before its iteration begins")
        found = copy.copy(self)
        found.dataset, found._usages = dataset, {}
        return found

    def __len__(self) -> int:
        """Return the items of a pass on this rank. Raises TypeError where a pass does not end, and
        where their number is not known."""
        leaves_out = any(kind_of(stage) is StageKind.FILTER for stage in self._stages)
        if leaves_out and self.dataset.length is None:
            raise TypeError("items are left out, so their number is not known: with_length(n)")
        return self.dataset.pass_items()

    def __bool__(self) -> bool:
        """Return True: that it is there does not depend on its length."""
        return True

    @property
    def steps_done(self) -> int:
        """The items of the present pass that are already delivered. Raises TypeError as `len`."""
        at = self.dataset.cursor if self._cursor is None else self._cursor
        return self.dataset.items_done(at)

    @property
    def errors(self) -> int:
        """Samples that workers left out or replaced, up to the items delivered."""
        return self.usage.errors

    @property
    def usage(self) -> Usage:
        """The time spent so far, by kind, as of a `Loader`: waiting is measured in the consumer,
        reads and stages in the workers, up to the items delivered."""
        total = sum(self._usages.values(), Usage())
        return replace(total, wait_s=self._wait_s, elapsed_s=self._elapsed_s)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the dataset after the items that were delivered."""
        if self._state is None:
            self._state = self.dataset.state_dict()
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state as the dataset does."""
        if self._iteration:
            raise PipelineError("load_state_dict was called after iteration began; call it before")
        self.dataset.load_state_dict(state)
        self._state = self._cursor = None

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass from here on. Ends an earlier iteration of this loader."""
        self._iteration += 1
        iteration = self._iteration
        at = self.dataset.cursor if self._cursor is None else self._cursor
        options = dict(self._options)
        collate = options.pop("collate_fn", None) or _default_collate()
        passing = DataLoader(
            _PassDataset(self.dataset, at),
            batch_size=None,
            num_workers=self.num_workers,
            collate_fn=_Collate(collate),
            **options,
        )
        chain = _ItemStages(self._stages, self.dataset)
        last_s = time.perf_counter()
        for step in self._waiting(passing):
            for entry in step.items:
                if iteration != self._iteration:
                    raise DataError("another iteration of this loader has begun")
                if entry.error is not None:
                    raise entry.error
                self._usages[iteration, entry.worker] = entry.usage
                self._cursor, self._state = entry.cursor, entry.state
                self._elapsed_s += (now_s := time.perf_counter()) - last_s
                last_s = now_s
                if not entry.empty and (item := chain.run(entry)) is not DROPPED:
                    yield item
        if iteration == self._iteration:
            self._end(self._cursor or at)

    def _waiting(self, steps: Iterable["_Step"]) -> Iterator["_Step"]:
        """Yield the steps, and count the time waited for them."""
        found, began_s = iter(steps), time.perf_counter()
        for step in found:
            self._wait_s += time.perf_counter() - began_s
            yield step
            began_s = time.perf_counter()

    def _end(self, last: Cursor) -> None:
        """Move the state to the end of the pass."""
        state = self.state_dict()
        state.pop("until", None)
        position = last.position if last.until is None else last.until
        self._cursor, self._state = Cursor(position), {**state, "position": position}


@dataclass
class _CursorItem:
    """An item, and the cursor of the dataset after its delivery; or an error."""

    item: Any = None
    cursor: Cursor | None = None
    state: dict[str, Any] | None = None
    empty: bool = False
    worker: int = 0
    usage: Usage = field(default_factory=Usage)
    """The usage of its worker, since the pass began."""
    error: Exception | None = None


class _ItemStages:
    """The stages of a loader, which make one item of each, or none, in the consumer's process."""

    def __init__(self, stages: Sequence[Stage], dataset: StreamingDataset) -> None:
        self._chain, self._pipeline = StageChain(stages), dataset.pipeline
        draws = dataset.pipeline.settings.options.seeded and any(map(may_draw, stages))
        self._seeder = Seeder(dataset.pipeline.open().seed, restore=True) if draws else None

    def run(self, entry: "_CursorItem") -> Any:
        """Return what the stages make of an item: DROPPED if they leave it out. Raises what the
        stages raise; PipelineError if other ranks would not leave it out."""
        cursor = entry.cursor
        assert cursor is not None
        try:
            if self._seeder is None:
                found = self._chain.run(entry.item)
            else:
                with self._seeder.around():
                    self._seeder.at(cursor.position, _PURPOSES + cursor.within)
                    found = self._chain.run(entry.item)
        except HandledError:
            found = DROPPED
        except StoppedError as error:
            raise error.__cause__ or error from None
        if found is DROPPED:
            self._pipeline.check_empty(PipelineItem(EMPTY, cursor))
        return found


@dataclass
class _Step:
    """All items of a step, which one worker makes."""

    items: list[_CursorItem]

    def pin_memory(self, *device: Any) -> "_Step":
        """Pin the items' memory, as `DataLoader` asks of types that it does not know."""
        from data.torch_internals import pin_memory

        for entry in self.items:
            entry.item = pin_memory(entry.item, *device)
        return self


@dataclass
class _Collate:
    collate: Callable[[Any], Any]

    def __call__(self, step: _Step) -> _Step:
        for entry in step.items:
            if not entry.empty and entry.error is None:
                entry.item = self.collate(entry.item)
        return step


class _PassDataset(IterableDataset):  # type: ignore[misc]
    """This worker's part of a pass over a dataset from a cursor on."""

    def __init__(self, dataset: StreamingDataset, at: Cursor) -> None:
        super().__init__()
        self._dataset, self._at = dataset, at

    def __iter__(self) -> Iterator[_Step]:
        step: list[_CursorItem] = []
        try:
            for entry in self._items():
                step.append(entry)
                if entry.cursor is not None and not entry.cursor.within:
                    yield _Step(step)
                    step = []
        except DataError as error:  # delivered unchanged: DataLoader would make text of it
            yield _Step([*step, _CursorItem(error=error)])

    def _items(self) -> Iterator[_CursorItem]:
        worker = ranks_and_workers.worker()
        offset, stride = (0, 1) if worker is None else (worker.id, worker.workers)
        pipeline = self._dataset.pipeline
        at, before = pipeline.pass_from(self._at), pipeline.usage
        for made in pipeline.made(at, offset, stride):
            cursor = made.cursor._replace(until=at.until)
            empty = made.item is EMPTY
            if empty:
                pipeline.check_empty(made)
            yield _CursorItem(
                None if empty else made.item,
                cursor,
                pipeline.state(cursor),
                empty,
                offset,
                pipeline.usage - before,
            )


def _same(item: Any) -> Any:
    return item


def _torch_collate() -> Any:
    from torch.utils.data import default_collate

    return default_collate


def _default_collate() -> Any:
    from torch.utils.data import default_convert

    return default_convert
