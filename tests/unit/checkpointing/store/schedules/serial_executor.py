"""What stands for a pool of threads in the model: all is done at once and in order, by the actor's
own thread, so that a schedule is the same each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Self


class Serial:
    """A ThreadPoolExecutor without threads."""

    def __init__(self, *_: object, **__: object) -> None:
        """Takes what the other one takes."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001  # raised again by whoever wants the result
            future.set_exception(error)
        return future

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
        return map(function, *items)

    def shutdown(self, **_: object) -> None:
        """There is nothing to wait for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """As `shutdown`."""
