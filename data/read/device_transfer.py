"""Transfer of batches to the device before they are asked for. The only module of `data` that uses
torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from data.errors import DataError
from data.read.batch import Batch
from data.read.batches.thread_prefetch import ThreadPrefetcher

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class DeviceBatches(Iterable[T], Generic[T]):
    """The batches on the device, created by `to_device`. Its state is that of the batches which the
    consumer has received."""

    def __init__(self, batches: Iterable[T], device: torch.device) -> None:
        self._batches, self._device = batches, device
        self._state: Mapping[str, Any] | None = None

    def __iter__(self) -> Iterator[T]:
        iterator = iter(self._batches)
        self._state = None
        if self._device.type == "cuda":
            return _TransferIterator(self, iterator, _Copies(self._device))
        return map(partial(_on, self._device), iterator)

    def __len__(self) -> int:
        """Return the length of the source. Raises TypeError where it has none."""
        return len(self._batches)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        """Return True: that it is there does not depend on its length."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the batches' source, as of the last batch that was delivered here.

        Raises DataError if the source has none.
        """
        if self._state is not None:
            return dict(self._state)
        return _state_of(self._batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state into the source. Raises DataError if it has none."""
        load = getattr(self._batches, "load_state_dict", None)
        if load is None:
            raise DataError(f"{type(self._batches).__name__} has no state to load")
        load(state)
        self._state = None

    def __getattr__(self, name: str) -> Any:
        """Return attributes that are not defined here, such as `usage` and `close`, from the
        source."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._batches, name)


def to_device(batches: Iterable[T], device: torch.device | str) -> DeviceBatches[T]:
    """Return `batches` with their tensors on `device`; numpy arrays become tensors.

    Tensors and arrays are found in dicts, lists, tuples, named tuples and the `data` of a `Batch`;
    other values are kept. To a CUDA device they are copied through pinned memory on a separate
    stream, while the consumer works on the batch before. To another device each batch is moved when
    it is asked for, which for the CPU copies nothing.

    Save the state of the result, or of the `Loader`: both count what the consumer has received.
    With any other source that has a state, only the state of the result does.

    Raises DataError for a device that does not exist.
    """
    import torch

    found = torch.device(device)
    if found.type == "cuda":
        if not torch.cuda.is_available():
            raise DataError(f"device {found}: torch does not find a CUDA device in this process")
        if str(found) == "cuda":
            found = torch.device("cuda", torch.cuda.current_device())
    return DeviceBatches(batches, found)


def moved(thing: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return `thing` with `move` applied to all tensors in it."""
    import torch

    if isinstance(thing, torch.Tensor):
        return move(thing)
    if isinstance(thing, np.ndarray):
        return move(_tensor(thing)) if thing.dtype.kind in "biufc" else thing
    if isinstance(thing, Batch):
        return replace(thing, data=moved(thing.data, move))
    if isinstance(thing, Mapping):
        return type(thing)({key: moved(one, move) for key, one in thing.items()})  # type: ignore[call-arg]
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return type(thing)(*(moved(one, move) for one in thing))
    if isinstance(thing, list | tuple):
        return type(thing)(moved(one, move) for one in thing)
    return thing


def _on(device: torch.device, batch: T) -> T:
    found: T = moved(batch, lambda tensor: tensor.to(device))
    return found


class _Pulled(NamedTuple):
    """A batch that its source has made and the consumer has not received."""

    batch: Any
    deliver: Callable[[], dict[str, Any] | None]
    """Counts it as delivered; returns the state to report from then on, None for that of the
    source."""


class _Copied(NamedTuple):
    """A batch that is being copied."""

    batch: Any
    tensors: list[torch.Tensor]
    event: torch.cuda.Event


class _Copies:
    """Copies to one CUDA device, on a separate stream.

    The pinned memory comes from torch's `CachingHostAllocator`, which reuses freed memory only
    after the copies from it have finished, so a few buffers are used in turn.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._cuda, self._device = torch.cuda, device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, batch: Any) -> _Copied:
        """Start to copy a batch; may be called in any thread."""
        tensors: list[torch.Tensor] = []

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type == "cpu":
                tensor = tensor if tensor.is_pinned() else tensor.pin_memory()
            tensors.append(tensor.to(self._device, non_blocking=True))
            return tensors[-1]

        with self._cuda.stream(self._stream):
            copied = moved(batch, copy)
            return _Copied(copied, tensors, self._stream.record_event())

    def end(self, copied: _Copied) -> Any:
        """Return the batch for work on the current stream of this thread; does not wait."""
        current = self._cuda.current_stream(self._device)
        current.wait_event(copied.event)
        for tensor in copied.tensors:  # so that its memory is not reused before that work is over
            tensor.record_stream(current)
        return copied.batch


class _TransferIterator(Iterator[T]):
    """Copies one batch ahead of the consumer, in a thread."""

    def __init__(self, output: DeviceBatches[T], iterator: Iterator[T], copies: _Copies) -> None:
        self._output, self._copies = output, copies
        pull = (
            _pull_from_loader(iterator)
            if hasattr(iterator, "take")
            else _pull_from_iterable(output, iterator)
        )

        def load(_: int) -> tuple[_Copied, _Pulled] | None:
            pulled = pull()
            return None if pulled is None else (copies.begin(pulled.batch), pulled)

        self._prefetcher = ThreadPrefetcher(load, count(), depth=1, threads=1)

    def __next__(self) -> T:
        found = self._prefetcher.next()
        if found is None:
            raise StopIteration
        copied, pulled = found
        batch: T = self._copies.end(copied)
        self._output._state = pulled.deliver()
        return batch


def _pull_from_loader(iterator: Any) -> Callable[[], _Pulled | None]:
    """Pull from a loader, whose position moves only when a batch is delivered."""

    def pull() -> _Pulled | None:
        try:
            taken = iterator.take()
        except StopIteration:
            return None

        def deliver() -> None:
            iterator.deliver(taken)

        return _Pulled(taken.batch, deliver)

    return pull


def _pull_from_iterable(
    output: DeviceBatches[T], iterator: Iterator[T]
) -> Callable[[], _Pulled | None]:
    """Pull from any other source: its state after each batch is kept until that batch is
    delivered."""
    source = output._batches
    has_state = hasattr(source, "state_dict")
    output._state = _state_of(source) if has_state else None

    def pull() -> _Pulled | None:
        try:
            batch = next(iterator)
        except StopIteration:
            return None
        state = _state_of(source) if has_state else None
        return _Pulled(batch, lambda: state)

    return pull


def _state_of(source: object) -> dict[str, Any]:
    if not hasattr(source, "state_dict"):
        raise DataError(f"{type(source).__name__} has no state to save")
    return dict(source.state_dict())


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    import torch

    return torch.from_numpy(array if array.flags.writeable else array.copy())
