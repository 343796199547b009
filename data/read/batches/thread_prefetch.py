"""Work done ahead in threads, handed over in order; or, without threads, when it is asked for."""

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

    The steps are worked out in the threads, too, one after the other. `load` and `steps` must not
    refer to the prefetcher: when it is garbage, its threads end by themselves.

    Args:
        alone: says when `next` is to call `load` itself, and the threads are to rest.
    """

    def __init__(
        self,
        load: Callable[[S], T],
        steps: Iterator[S],
        *,
        depth: int,
        threads: int,
        alone: InlineReadDecision | None = None,
    ) -> None:
        self._turns: _Turns[S, T] = _Turns(alone.timed(load) if alone else load, steps)
        self._alone, self._depth = alone, depth
        self._ended: str | None = None
        self._is_over = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hpckit-data")
        # Garbage collection may run anywhere, under any lock, so it signals and does not wait.
        self._abandon = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        self._pending: deque[Future[T]] = deque()
        self._fill()

    def next(self) -> T:
        """The next result, in order; waits for it.

        Raises StopIteration after the last one; what `load` or `steps` raised, once, and then ends;
        DataError if it has ended already.
        """
        if self._ended is not None:
            raise self._end_error()
        if self._is_over:
            raise StopIteration
        by_itself = not self._pending
        if self._alone is not None:
            self._alone.asked()
        if by_itself:
            self._make_one()
        try:
            result = self._pending[0].result()
        except CancelledError as error:  # another thread closed us while we waited
            raise self._end_error() from error
        except _EndError:
            self._is_over = True
            self._let_go()
            raise StopIteration from None
        except Exception:
            # Not waiting: the error must come out even if another thread hangs in its read.
            self._stop("this iteration ended with an error", wait=False)
            self._let_go()
            raise
        self._pending.popleft()
        if self._alone is not None:
            self._alone.given(by_itself)
        self._fill()
        return result

    def _let_go(self) -> None:
        """There is nothing more to come. An error that was met keeps its frames, and by them this:
        so it must not be kept here, or the threads would live until the garbage is collected."""
        self._pending.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close(self, reason: str) -> None:
        """Stop and wait for the threads; later calls of `next` give `reason`."""
        self._stop(reason, wait=True)

    def stop(self, reason: str) -> None:
        """As `close`, and does not wait."""
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
        """Results that are there already."""
        return max(0, sum(result.done() for result in list(self._pending)) - self._turns.ends)

    def _make_one(self) -> None:
        """In the calling thread; it can be interrupted there, after which nobody knows where it
        stands."""
        try:
            self._pending.append(self._turns.ask())
            self._turns.take()
            if isinstance(self._pending[0].exception(), Exception | None):
                return
        except CancelledError:  # another thread closed us
            return
        except BaseException:
            self._interrupted()
            raise
        self._interrupted()

    def _interrupted(self) -> None:
        self._stop("this iteration was interrupted", wait=False)

    def _fill(self) -> None:
        """Have threads make what is to be there ahead."""
        while len(self._pending) < self._depth and not (self._alone and self._alone.now):
            self._submit()

    def _submit(self) -> None:
        try:
            self._pending.append(self._turns.ask())
            self._pool.submit(self._turns.take)
        except RuntimeError as error:  # the pool was shut down, by close or by Python's exit
            raise self._end_error() from error

    def _end_error(self) -> DataError:
        return _ended(self._ended or "Python is shutting down")


class InlinePrefetcher(Generic[S, T]):
    """As `ThreadPrefetcher`, but that `next` does the work, in the thread that calls it."""

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


def prefetching(
    load: Callable[[S], T],
    steps: Iterator[S],
    *,
    depth: int,
    threads: int,
    alone: InlineReadDecision | None = None,
) -> ThreadPrefetcher[S, T] | InlinePrefetcher[S, T]:
    """In so many threads, or with 0 in none."""
    if threads == 0:
        return InlinePrefetcher(load, steps)
    return ThreadPrefetcher(load, steps, depth=depth, threads=threads, alone=alone)


class _EndError(Exception):
    """There was no further step."""


class _Turns(Generic[S, T]):
    """What the threads share. Result k is of step k, whichever thread takes it."""

    def __init__(self, load: Callable[[S], T], steps: Iterator[S]) -> None:
        self._load, self._steps = load, steps
        self._asked: deque[Future[T]] = deque()
        self._lock = threading.Lock()
        self.ends = 0
        """Results that only say that there are no more steps."""

    def ask(self) -> "Future[T]":
        """One more result."""
        result: Future[T] = Future()
        self._asked.append(result)
        return result

    def take(self) -> None:
        """Make the next one of those that were asked for."""
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
    return DataError(f"{reason}; iterate over the loader again to go on")
