"""Work done ahead in threads, handed over in order."""

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from data.errors import DataError

S = TypeVar("S")
T = TypeVar("T")


class Prefetcher(Generic[S, T]):
    """Calls `load(step)` for each of `steps` in threads, at most `depth` calls ahead.

    `load` must not refer to the prefetcher: when it is garbage, its threads end by themselves.
    """

    def __init__(
        self, load: Callable[[S], T], steps: Iterator[S], *, depth: int, threads: int
    ) -> None:
        self._load = load
        self._steps = steps
        self._ended: str | None = None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hpckit-data")
        # Garbage collection may run anywhere, under any lock, so it signals and does not wait.
        self._abandon = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        self._pending: deque[Future[T]] = deque()
        for _ in range(depth):
            self._submit()

    def next(self) -> T:
        """The next result, in order; waits for it.

        Raises StopIteration after the last one; what `load` raised, once, and then ends; DataError
        if it has ended already.
        """
        if self._ended is not None:
            raise self._end_error()
        if not self._pending:
            raise StopIteration
        try:
            result = self._pending[0].result()
        except CancelledError as error:  # another thread closed us while we waited
            raise self._end_error() from error
        except Exception:
            # Not waiting: the error must come out even if another thread hangs in its read.
            self._stop("this iteration ended with an error", wait=False)
            raise
        self._pending.popleft()
        self._submit()
        return result

    def close(self, reason: str) -> None:
        """Stop and wait for the threads; later calls of `next` give `reason`."""
        self._stop(reason, wait=True)

    def _stop(self, reason: str, *, wait: bool) -> None:
        if self._ended is None:
            self._ended = reason
        self._abandon.detach()
        self._pool.shutdown(wait=wait, cancel_futures=True)

    @property
    def ready(self) -> int:
        """Results that are there already."""
        return sum(result.done() for result in self._pending)

    def _submit(self) -> None:
        step = next(self._steps, None)
        if step is None:
            return
        try:
            self._pending.append(self._pool.submit(self._load, step))
        except RuntimeError as error:  # the pool was shut down, by close or by Python's exit
            raise self._end_error() from error

    def _end_error(self) -> DataError:
        reason = self._ended or "Python is shutting down"
        return DataError(f"{reason}; iterate over the loader again to go on")
