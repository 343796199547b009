"""A `DataLoader` over a pipeline, whose state is that of the pipeline."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from webdataset.pytorch import DataLoader, IterableDataset

from data.errors import DataError
from data.read.loader_metrics import Usage
from data.wds import ranks_and_workers
from data.wds.dataset import StreamingDataset
from data.wds.pipeline_cursor import Cursor
from data.wds.stages.stage_runner import EMPTY

_OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "persistent_workers")


class WebLoader:
    """Delivers the items of `dataset`, made in `num_workers` processes, in the exact order.

    Worker w of W makes every W-th step and the steps are delivered in turn, so any number of
    workers gives the same sequence. The cursor of the dataset comes with each item and counts when
    the item is delivered: the state does not depend on what was read ahead, and can be resumed with
    any number of workers, ranks and samples in a batch.

    Args:
        options: of `DataLoader`: collate_fn, prefetch_factor, pin_memory, timeout, worker_init_fn,
            multiprocessing_context and so on. Not its batch options: batches are made in the
            pipeline by `batched`.

    Raises DataError for an option that is not supported.
    """

    has_shared_state = True
    """Whether `state_dict` is the same on all ranks, and fits any number of them."""

    def __init__(self, dataset: StreamingDataset, *, num_workers: int = 0, **options: Any) -> None:
        given = sorted(name for name in options if name in _OURS)
        if given:
            raise DataError(
                f"{', '.join(given)} is not supported here: batch in the pipeline by batched(); "
                "workers are started for each pass, see with_epoch() for longer passes"
            )
        if not isinstance(dataset, StreamingDataset):
            raise DataError(f"expected a StreamingDataset or from_wds(...), got {type(dataset)}")
        self.dataset, self.num_workers = dataset, num_workers
        self._options = options
        self._state: dict[str, Any] | None = None
        self._cursor: Cursor | None = None
        self._usages: dict[tuple[int, int], Usage] = {}
        self._wait_s = self._elapsed_s = 0.0
        self._iteration = 0

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
            raise DataError("load_state_dict was called after iteration began; call it before")
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
                if not entry.empty:
                    yield entry.item
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


def _default_collate() -> Any:
    from torch.utils.data import default_convert

    return default_convert
