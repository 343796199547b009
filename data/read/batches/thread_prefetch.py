"""Prefetching in threads with results in order; or, without threads, work when it is asked for."""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from data.errors import DataError
from data.read.batches.inline_reads import InlineReadDecision

S = TypeVar("S")
T = TypeVar("T")


class ThreadPrefetcher(Generic[S, T]):
    """Calls `load(step)` for each of `steps` in threads, at most `depth` calls ahead.

    The threads also draw the steps, one after the other. `load` and `steps` must not refer to the
    prefetcher: when it is garbage-collected, its threads end on their own.

    Args:
        inline: decides when `next` calls `load` itself while the threads rest.
    """

    def __init__(
        self,
        load: Callable[[S], T],
        steps: Iterator[S],
        *,
        depth: int,
        threads: int,
        inline: InlineReadDecision | None = None,
    ) -> None:
        timed = inline.timed(load) if inline else load
        self._queue: _ResultQueue[S, T] = _ResultQueue(timed, steps)
        self._inline_decision, self._depth = inline, depth
        self._ended: str | None = None
        self._is_over = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hpckit-data")
        # Garbage collection may run anywhere, under any lock, so it signals and does not wait.
        self._abandon = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        self._pending: deque[Future[T]] = deque()
        self._fill()

    def next(self) -> T:
        """Wait for the next result, in order.

        Raises StopIteration after the last one; what `load` or `steps` raised, once, and then ends;
        DataError if it has ended already.
        """
        if self._ended is not None:
            raise self._end_error()
        if self._is_over:
            raise StopIteration
        by_itself = not self._pending
        if self._inline_decision is not None:
            self._inline_decision.asked()
        try:
            result = self._make_inline() if by_itself else self._pending[0].result()
        except CancelledError as error:  # another thread closed this one while it waited
            raise self._end_error() from error
        except _EndError:
            self._is_over = True
            self._release_pool()
            raise StopIteration from None
        except Exception:
            # No waiting: the error must come out even if another thread hangs in its read.
            self._stop("this iteration ended with an error", wait=False)
            self._release_pool()
            raise
        if not by_itself:
            self._pending.popleft()
        if self._inline_decision is not None:
            self._inline_decision.given(by_itself)
        self._fill()
        return result

    def _release_pool(self) -> None:
        """Shut the pool down, as nothing more will come. An error holds references to its frames,
        and by them to this object, so it must not be kept here, or the threads would live until the
        garbage is collected."""
        self._pending.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close(self, reason: str) -> None:
        """Stop and wait for the threads; later calls of `next` give `reason`."""
        self._stop(reason, wait=True)

    def stop(self, reason: str) -> None:
        """Stop the threads as `close` does, without waiting for them."""
        self._stop(reason, wait=False)

    def _stop(self, reason: str, *, wait: bool) -> None:
        if self._ended is None:
            self._ended = reason
        self._abandon.detach()
        for result in list(self._pending):
            result.cancel()
        self._pool.shutdown(wait=wait, cancel_futures=True)

    @property
    def ready(self) -> int:
        """The number of results that are available already."""
        return max(0, sum(result.done() for result in list(self._pending)) - self._queue.ends)

    def _make_inline(self) -> T:
        """Make the next result in the calling thread. If that is interrupted, its state is unknown
        and the iteration ends."""
        try:
            return self._queue.make()
        except Exception:
            raise
        except BaseException:
            self._stop("this iteration was interrupted", wait=False)
            raise

    def _fill(self) -> None:
        """Have the threads make results up to the prefetch depth."""
        while len(self._pending) < self._depth and not (
            self._inline_decision and self._inline_decision.now
        ):
            self._submit()

    def _submit(self) -> None:
        try:
            self._pending.append(self._queue.ask())
            self._pool.submit(self._queue.take)
        except RuntimeError as error:  # the pool was shut down, by close or by Python's exit
            raise self._end_error() from error

    def _end_error(self) -> DataError:
        return _ended(self._ended or "Python is shutting down")


class InlinePrefetcher(Generic[S, T]):
    """Like `ThreadPrefetcher`, but `next` does the work in the calling thread."""

    ready = 0

    def __init__(self, load: Callable[[S], T], steps: Iterator[S]) -> None:
        self._load, self._steps = load, steps
        self._reason: str | None = None

    def next(self) -> T:
        if self._reason is not None:
            raise _ended(self._reason)
        try:
            for step in self._steps:
                return self._load(step)
        except Exception:
            self._reason = "this iteration ended with an error"
            raise
        except BaseException:  # the step that was interrupted is lost
            self._reason = "this iteration was interrupted"
            raise
        raise StopIteration

    def stop(self, reason: str) -> None:
        self._reason = self._reason or reason

    close = stop


def make_prefetcher(
    load: Callable[[S], T],
    steps: Iterator[S],
    *,
    depth: int,
    threads: int,
    inline: InlineReadDecision | None = None,
) -> ThreadPrefetcher[S, T] | InlinePrefetcher[S, T]:
    """Return a prefetcher with this number of threads, or an inline one for 0 threads."""
    if threads == 0:
        return InlinePrefetcher(load, steps)
    return ThreadPrefetcher(load, steps, depth=depth, threads=threads, inline=inline)


class _EndError(Exception):
    """Raised when there are no further steps."""


class _ResultQueue(Generic[S, T]):
    """The queue of results that the threads share. Result k is of step k, whichever thread makes
    it."""

    def __init__(self, load: Callable[[S], T], steps: Iterator[S]) -> None:
        self._load, self._steps = load, steps
        self._asked: deque[Future[T]] = deque()
        self._lock = threading.Lock()
        self.ends = 0
        """The number of results that only say that there are no more steps."""

    def ask(self) -> "Future[T]":
        """Return the future of one more result."""
        result: Future[T] = Future()
        self._asked.append(result)
        return result

    def make(self) -> T:
        """Make the next result now; none may have been asked for."""
        with self._lock:
            try:
                step = next(self._steps)
            except StopIteration:
                raise _EndError from None
        return self._load(step)

    def take(self) -> None:
        """Make the next result that was asked for."""
        with self._lock:
            result = self._asked.popleft()
            if not result.set_running_or_notify_cancel():
                return
            try:
                step = next(self._steps)
            except BaseException as error:  # noqa: BLE001 (whoever asked meets it)
                self.ends += isinstance(error, StopIteration)
                result.set_exception(_EndError() if isinstance(error, StopIteration) else error)
                return
        try:
            result.set_result(self._load(step))
        except BaseException as error:  # noqa: BLE001 (as above)
            result.set_exception(error)


def _ended(reason: str) -> DataError:
    return DataError(f"{reason}; iterate over the loader again to continue")
