"""Batches made by reader processes and handed over in order through shared memory."""

import logging
import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing import resource_tracker, util
from multiprocessing.context import ForkContext, SpawnContext

from data.errors import DataError, SampleError
from data.read.batch import Batch, BatchTimes
from data.read.batches.batch_fetcher import BatchFetcher, BatchWork
from data.read.processes import StartMethod
from data.read.processes.reader_process import (
    IGNORED_SIGNALS,
    BatchResult,
    ForkInheritance,
    UserFunctions,
    describe_unpicklable,
    stores_of,
)
from data.read.processes.reader_worker import ReaderWorker
from data.read.processes.remote_errors import rebuild_error
from data.read.processes.shared_memory_slot import PickleLayout, SharedMemorySlot

_GRACE_S = 5.0  # seconds for a batch that is being made when the prefetcher is closed
_log = logging.getLogger(__name__)


class ProcessPrefetcher:
    """Makes a batch of each of `steps` in `workers` processes: batch k is made by worker k mod
    workers.

    Each works at most `depth` batches ahead. The workers hold no position: it moves when `next`
    returns. They die with this process, however it ends; they ignore signals that are sent to all
    processes of a job, which this process handles.

    Args:
        start: "spawn": new Python processes, which import the modules of transform and collate, and
            the main module, as `multiprocessing` does. "fork": copies of this process, so these
            need not be importable, but a fork after threads, CUDA or downloads in this process may
            not work.

    Raises DataError if the fetcher cannot be pickled for another process, or none can be started.
    """

    def __init__(
        self,
        fetcher: BatchFetcher,
        steps: Iterator[BatchWork],
        *,
        workers: int,
        depth: int,
        start: StartMethod = "spawn",
    ) -> None:
        self._has_grown = False
        self._faults, self._stores = fetcher.faults, stores_of(fetcher.stream)
        self._steps, self._ended = steps, ""
        self._pending: deque[BatchWork] = deque()
        self._requested = self._delivered = 0
        setup = _setup(fetcher, start)
        functions = UserFunctions(fetcher.transform, fetcher.collate)
        inherited = ForkInheritance(functions, []) if start == "fork" else None
        context = _context(start)
        self._workers = [ReaderWorker(i, context, depth, inherited) for i in range(workers)]
        self._end_event = _start(self._workers, setup)
        # When Python exits, before multiprocessing waits for them, or at garbage collection
        self._abandon = util.Finalize(
            self, _abandon, (self._workers, self._end_event), exitpriority=100
        )
        for _ in range(workers * depth):
            self._submit()

    def next(self) -> tuple[Batch, BatchTimes, int]:
        """Wait for the next batch, and return it with the position after it.

        Raises StopIteration after the last one; once, and then ends: what making it raised, with
        its causes and a note of where, ReaderProcessError if its process has died; DataError if
        this has ended already.
        """
        if self._ended:
            raise self._end_error()
        if not self._pending:
            self._verify_reads()
            raise StopIteration
        worker = self._workers[self._delivered % len(self._workers)]
        try:
            made, grown = worker.take()
            batch, times = self._accepted(made, worker.name)
        except Exception as error:
            if self._ended:  # another thread closed this one while it waited
                raise self._end_error() from error
            self._stop("this iteration ended with an error", 0)
            raise
        worker.done()
        if grown:
            self._log_grown()
            times = times._replace(grown=1)
        self._delivered += 1
        after = self._pending.popleft().share.after
        self._submit()
        return batch, times, after

    @property
    def ready(self) -> int:
        """The number of batches that are available already."""
        return 0 if self._ended else sum(worker.ready for worker in self._workers)

    def close(self, reason: str) -> None:
        """End the processes and wait for them; later calls of `next` give `reason`."""
        self._stop(reason, _GRACE_S)

    def _stop(self, reason: str, grace_s: float) -> None:
        if self._ended:
            return
        self._ended = reason
        self._abandon.cancel()
        for worker in self._workers:
            worker.leave()
        until_s = time.monotonic() + grace_s
        for worker in self._workers:
            worker.end(max(0.0, until_s - time.monotonic()))
        self._end_event.set()

    def _submit(self) -> None:
        work = next(self._steps, None)
        if work is not None:
            self._workers[self._requested % len(self._workers)].ask(work)
            self._pending.append(work)
            self._requested += 1

    def _verify_reads(self) -> None:
        """Have the processes check, once, whether all bytes that they read were right."""
        asked, self._requested = self._workers[: self._requested], 0
        for worker in asked:
            worker.ask(None)
        for worker in asked:
            made, _ = worker.take()
            if made.error is not None:
                self._stop("this iteration ended with an error", 0)
                raise rebuild_error(made.error, worker.name)
            worker.done()

    def _accepted(self, made: BatchResult, where: str) -> tuple[Batch, BatchTimes]:
        """Count errors and metrics of a result; raises an error that the policy does not accept."""
        for store, counts in zip(self._stores, made.counts, strict=False):
            store.metrics.add(**counts)
        for record in made.faults:
            if record is None:
                self._faults.good()
                continue
            bad = rebuild_error(record, where)
            assert isinstance(bad, SampleError)
            self._faults.bad(bad)
        if made.error is not None:
            raise rebuild_error(made.error, where)
        assert made.batch is not None
        assert made.times is not None
        if made.batch.keys and not made.faults and self._faults.in_a_row:
            self._faults.good()
        return made.batch, made.times

    def _log_grown(self) -> None:
        if not self._has_grown:
            _log.info("a batch is larger than the first ones, so its shared memory has grown")
        self._has_grown = True

    def _end_error(self) -> DataError:
        return DataError(f"{self._ended}; iterate over the loader again to continue")


def _context(start: StartMethod) -> ForkContext | SpawnContext:
    return (
        multiprocessing.get_context("fork")
        if start == "fork"
        else multiprocessing.get_context("spawn")
    )


def _setup(fetcher: BatchFetcher, start: StartMethod) -> tuple[SharedMemorySlot, PickleLayout]:
    """Return the fetcher, pickled into memory that all workers share."""
    slot = SharedMemorySlot.make()
    if start == "fork":
        fetcher = replace(fetcher, transform=None, collate=None)
    try:
        return slot, slot.put(fetcher)
    except Exception as error:
        parts = [("transform", fetcher.transform), ("collate", fetcher.collate)]
        problem = describe_unpicklable([*parts, ("the dataset", fetcher.stream)]) or error
        raise DataError(
            f"cannot be sent to reader processes: {problem}; define it at the top"
            ' level of a module, not inside a function, or use start_method="fork" or workers=0'
        ) from error


def _start(
    workers: Sequence[ReaderWorker], setup: tuple[SharedMemorySlot, PickleLayout]
) -> threading.Event:
    """Start the workers; they live until the event is set or this process ends. Raises
    DataError."""
    end_event, begun = threading.Event(), Future[None]()
    stay = threading.Thread(
        target=_start_and_stay,
        args=(workers, setup, end_event, begun),
        name="hpckit-data-workers",
        daemon=True,
    )
    stay.start()
    try:
        begun.result()
    except Exception as error:
        raise DataError(f"reader processes cannot be started: {error}") from error
    return end_event


def _start_and_stay(
    workers: Sequence[ReaderWorker],
    setup: tuple[SharedMemorySlot, PickleLayout],
    end_event: threading.Event,
    begun: "Future[None]",
) -> None:
    """Start the workers in a thread that stays, since they die with the thread that started them,
    and the one that starts the iteration may end."""
    try:
        resource_tracker.ensure_running()  # which would let the signals through again
        # they would end the workers until these ignore them
        signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
        for worker in workers:
            worker.start(*setup)
    except BaseException as error:  # noqa: BLE001 (raised again by whoever waits)
        for worker in workers:
            worker.kill()
        begun.set_exception(error)
        return
    begun.set_result(None)
    end_event.wait()


def _abandon(workers: Sequence[ReaderWorker], end_event: threading.Event) -> None:
    for worker in workers:
        worker.kill()
    end_event.set()
