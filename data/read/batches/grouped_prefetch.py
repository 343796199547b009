"""Prefetching of small pieces of work in groups: handing over one costs as much as reading ten
samples."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from data.read.batches.inline_reads import InlineReadDecision
from data.read.batches.thread_prefetch import make_prefetcher

S = TypeVar("S")
T = TypeVar("T")


class _Group(NamedTuple, Generic[T]):
    made: list[T]
    error: Exception | None
    """The error of the step after the results."""


class GroupedPrefetcher(Generic[S, T]):
    """Like `make_prefetcher`, in groups of up to `most` steps; an error is raised at its own step.

    The first groups are smaller, so that the first result comes as soon as without groups. `load`
    and `steps` must not refer to this object.
    """

    def __init__(
        self,
        load: Callable[[S], T],
        steps: Iterator[S],
        *,
        most: int,
        depth: int,
        threads: int,
        inline: InlineReadDecision | None = None,
    ) -> None:
        def load_all(group: list[S]) -> _Group[T]:
            return _loaded(load, group)

        self._most = most
        self._groups = make_prefetcher(
            load_all, _grouped(steps, most, inline), depth=depth, threads=threads, inline=inline
        )
        self._made: deque[T] = deque()
        self._error: Exception | None = None

    def next(self) -> T:
        """Wait for the next result, as `ThreadPrefetcher.next` does."""
        if not self._made:
            if self._error is None:
                made, self._error = self._groups.next()
                self._made.extend(made)
            if not self._made and self._error is not None:
                error, self._error = self._error, None
                self._groups.stop("this iteration ended with an error")
                try:
                    raise error
                finally:
                    del error  # whose frames refer to this object
        return self._made.popleft()

    def close(self, reason: str) -> None:
        """Stop the threads, as `ThreadPrefetcher.close` does."""
        self._made.clear()
        self._error = None
        self._groups.close(reason)

    @property
    def ready(self) -> int:
        """The approximate number of results that are available already."""
        return len(self._made) + self._groups.ready * self._most


def _grouped(steps: Iterator[S], most: int, inline: InlineReadDecision | None) -> Iterator[list[S]]:
    """Yield the groups. A consumer that reads by itself hands nothing over: it reads one batch at a
    time, into the memory of the last one, which is in the processor's cache still."""
    count = 1
    while group := list(islice(steps, 1 if inline is not None and inline.now else count)):
        yield group
        count = min(2 * count, most)


def _loaded(load: Callable[[S], T], group: list[S]) -> _Group[T]:
    made: list[T] = []
    for step in group:
        try:
            made.append(load(step))
        except Exception as error:  # noqa: BLE001 (raised where its step is asked for)
            return _Group(made, error)
    return _Group(made, None)
