"""A `DataLoader` over a pipeline, whose state is the pipeline's."""

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
    """Hands on what `dataset` delivers, made in `num_workers` processes, in the exact order.

    Worker w of W makes every W-th step and they are handed on in turn, so any number of workers
    gives the same sequence. Where the dataset stands comes with each item and counts when the item
    is handed on: the state knows nothing of what was read ahead, and goes on with any number of
    workers, ranks and samples in a batch.

    Args:
        options: of `DataLoader`: collate_fn, prefetch_factor, pin_memory, timeout, worker_init_fn,
            multiprocessing_context and so on. Not its batches: those are the pipeline's own, by
            `batched`.

    Raises DataError for an option that cannot be.
    """

    def __init__(self, dataset: StreamingDataset, *, num_workers: int = 0, **options: Any) -> None:
        given = sorted(name for name in options if name in _OURS)
        if given:
            raise DataError(
                f"{', '.join(given)} has no place here: batch in the pipeline by batched(); workers"
                " are started for each pass, see with_epoch() for longer ones"
            )
        if not isinstance(dataset, StreamingDataset):
            raise DataError(f"expected a StreamingDataset or from_wds(...), got {type(dataset)}")
        self.dataset, self.num_workers = dataset, num_workers
        self._options = options
        self._state: dict[str, Any] | None = None
        self._cursor: Cursor | None = None
        self._usages: dict[tuple[int, int], Usage] = {}
        self._wait_s = self._elapsed_s = 0.0
        self._turn = 0

    @property
    def errors(self) -> int:
        """Samples that workers left out or replaced, as far as they were handed on."""
        return self.usage.errors

    @property
    def usage(self) -> Usage:
        """Where the time has gone so far, as of a `Loader`: the consumer's waiting is measured
        here, reads and stages where they are done, as far as their items were handed on."""
        told = sum(self._usages.values(), Usage())
        return replace(told, wait_s=self._wait_s, elapsed_s=self._elapsed_s)

    def state_dict(self) -> dict[str, Any]:
        """As of the dataset, after the items that were handed on."""
        if self._state is None:
            self._state = self.dataset.state_dict()
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As of the dataset."""
        if self._turn:
            raise DataError("load_state_dict came after iteration began; call it before")
        self.dataset.load_state_dict(state)
        self._state = self._cursor = None

    def __iter__(self) -> Iterator[Any]:
        """A pass from here on. Ends an earlier iteration of this loader."""
        self._turn += 1
        turn = self._turn
        at = self.dataset.cursor if self._cursor is None else self._cursor
        options = dict(self._options)
        collate = options.pop("collate_fn", None) or _usual()
        passing = DataLoader(
            _Stamping(self.dataset, at),
            batch_size=None,
            num_workers=self.num_workers,
            collate_fn=_Collate(collate),
            **options,
        )
        last_s = time.perf_counter()
        for step in self._waiting(passing):
            for stamped in step.items:
                if turn != self._turn:
                    raise DataError("another iteration of this loader has begun")
                if stamped.error is not None:
                    raise stamped.error
                self._usages[turn, stamped.worker] = stamped.usage
                self._cursor, self._state = stamped.cursor, stamped.state
                self._elapsed_s += (now_s := time.perf_counter()) - last_s
                last_s = now_s
                if not stamped.empty:
                    yield stamped.item
        if turn == self._turn:
            self._end(self._cursor or at)

    def _waiting(self, steps: Iterable["_Step"]) -> Iterator["_Step"]:
        """The same, and how long they were waited for."""
        found, began_s = iter(steps), time.perf_counter()
        for step in found:
            self._wait_s += time.perf_counter() - began_s
            yield step
            began_s = time.perf_counter()

    def _end(self, last: Cursor) -> None:
        """The pass is over."""
        state = self.state_dict()
        state.pop("until", None)
        position = last.position if last.until is None else last.until
        self._cursor, self._state = Cursor(position), {**state, "position": position}


@dataclass
class _Stamped:
    """An item, and where the dataset stands once it was handed on; or an error."""

    item: Any = None
    cursor: Cursor | None = None
    state: dict[str, Any] | None = None
    empty: bool = False
    worker: int = 0
    usage: Usage = field(default_factory=Usage)
    """Of its worker, since the pass began."""
    error: Exception | None = None


@dataclass
class _Step:
    """All items of a step, which one worker makes."""

    items: list[_Stamped]

    def pin_memory(self, *device: Any) -> "_Step":
        """As `DataLoader` asks of types that it does not know."""
        from torch.utils.data._utils.pin_memory import pin_memory

        for stamped in self.items:
            stamped.item = pin_memory(stamped.item, *device)  # type: ignore[no-untyped-call]
        return self


@dataclass
class _Collate:
    collate: Callable[[Any], Any]

    def __call__(self, step: _Step) -> _Step:
        for stamped in step.items:
            if not stamped.empty and stamped.error is None:
                stamped.item = self.collate(stamped.item)
        return step


class _Stamping(IterableDataset):  # type: ignore[misc]
    """A pass over a dataset from a cursor on, this worker's part of it."""

    def __init__(self, dataset: StreamingDataset, at: Cursor) -> None:
        super().__init__()
        self._dataset, self._at = dataset, at

    def __iter__(self) -> Iterator[_Step]:
        step: list[_Stamped] = []
        try:
            for stamped in self._items():
                step.append(stamped)
                if stamped.cursor is not None and not stamped.cursor.within:
                    yield _Step(step)
                    step = []
        except DataError as error:  # as it is: DataLoader makes text of it
            yield _Step([*step, _Stamped(error=error)])

    def _items(self) -> Iterator[_Stamped]:
        worker = ranks_and_workers.worker()
        offset, stride = (0, 1) if worker is None else (worker.id, worker.workers)
        pipeline = self._dataset.pipeline
        at, before = pipeline.pass_from(self._at), pipeline.usage
        for made in pipeline.made(at, offset, stride):
            cursor = made.cursor._replace(until=at.until)
            empty = made.item is EMPTY
            if empty:
                pipeline.check_empty(made.cursor)
            yield _Stamped(
                None if empty else made.item,
                cursor,
                pipeline.state(cursor),
                empty,
                offset,
                pipeline.usage - before,
            )


def _usual() -> Any:
    from torch.utils.data import default_convert

    return default_convert
